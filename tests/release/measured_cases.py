"""Noisy counts of a release, for tests of what is computed from them."""

MEASURED = {
    "unit": "records",
    "axes": [
        {"column": "department", "nullable": False, "missing": 3, "labels": ["general", "cardiology", "dermatology",
         "missing"], "groups": [["general"], ["cardiology"], ["dermatology"], []]},
        {"column": "insured", "nullable": True, "missing": 2, "labels": ["false", "true", "missing"],
         "groups": [["false"], ["true"], []]},
        {"column": "minutes", "nullable": False, "missing": 3, "labels": ["5 to 19", "20 to 59", "60 to 120",
         "missing"], "kind": "integer", "cuts": [20, 60]},
    ],
    "tables": [
        {"axes": [0], "order": 0, "sigma": 40.0, "parts": [1, 1, 1, 1], "measured": [28_790, 14_420, 4_810, -31]},
        {"axes": [1], "order": 0, "sigma": 40.0, "parts": [1, 1, 1], "measured": [16_020, 15_960, 16_011]},
        {"axes": [2], "order": 0, "sigma": 40.0, "parts": [2, 4, 1, 1], "measured": [6_200, 16_540, 25_281, 12]},
        {"axes": [0, 1], "order": 1, "sigma": 55.0,
         "measured": [9_600, 9_650, 9_540, 4_800, 4_790, 4_830, 1_600, 1_610, 1_600, 9, -3, 40]},
    ],
    "left_out": 1,
}  # fmt: skip
"""Noisy counts as of `measured_tables`: of about 48,000 records."""
