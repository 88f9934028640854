"""What texts are drawn from is the trained model, in the device's precision."""

import pytest
import torch
from text_cases import save_model

from dpsynth_platform.synth.text import trained
from dpsynth_platform.synth.text.base_models import base_model, load
from dpsynth_platform.training import precision
from dpsynth_platform.training.adapter import with_adapter
from dpsynth_platform.training.plan import Adapter, TrainingPlan


@pytest.mark.parametrize("adapter", [None, Adapter(rank=4)], ids=["full", "lora"])
def test_drawn_from_is_what_was_trained(tmp_path, monkeypatch, adapter):
    plan = TrainingPlan(units=10, batch_size=2, steps=1, noise_multiplier=1.0, adapter=adapter)
    base = base_model(str(save_model(tmp_path / "base")), tmp_path)
    model = with_adapter(load(base)[0], plan)
    with torch.no_grad():
        for value in model.parameters():
            if value.requires_grad:
                value.add_(0.3 * value.std() + 0.02 * torch.randn_like(value))
    trained.save_weights(model, tmp_path, 1)
    tokens = torch.arange(12)[None]
    expected = model.eval()(tokens).logits
    assert (expected - load(base)[0](tokens).logits).norm() > 0.2 * expected.norm()
    for number_type, near in ((torch.float32, 1e-4), (torch.bfloat16, 0.05)):
        monkeypatch.setattr(precision, "precision_of", {torch.device("cpu"): number_type}.__getitem__)
        loaded, _ = trained.load_for_sampling(base, plan, tmp_path, "cpu")
        assert {value.dtype for value in loaded.parameters()} == {number_type}
        assert not any("lora" in name for name, _ in loaded.named_parameters())
        assert (loaded(tokens).logits - expected).norm() <= near * expected.norm()
