"""The inside of a container of `container_cases`: mounts, network and user, and then the service's command."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path


def call(*command):
    subprocess.run(command, check=True)


def bind(source, target, writable):
    if Path(source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    call("mount", "--bind", source, target)
    if not writable:
        call("mount", "-o", "remount,bind,ro", target)


spec = json.loads(sys.argv[1])
root = Path(spec["root"])
call("ip", "link", "set", "lo", "up")
for number, network in enumerate(spec["networks"]):
    here, there = f"eth{number}", f"v{os.getpid()}-{number}"
    hub = ("nsenter", "-t", str(network["hub"]), "-n", "ip", "link")
    call(*hub, "add", there, "type", "veth", "peer", "name", here, "netns", str(os.getpid()))
    call(*hub, "set", there, "master", network["bridge"], "up")
    call("ip", "address", "add", f"{network['address']}/24", "dev", here)
    call("ip", "link", "set", here, "up")
call("mount", "--make-rprivate", "/")
call("mount", "-t", "tmpfs", "root", root)
root.chmod(0o755)
for path in spec["programs"]:
    bind(os.path.realpath(path), root / path.lstrip("/"), False)
for path in ("/proc", "/dev"):
    (root / path.lstrip("/")).mkdir()
    call("mount", "--rbind", path, root / path.lstrip("/"))
for path in ("etc", "opt/flower", "run/secrets"):
    (root / path).mkdir(parents=True, exist_ok=True)
(root / "etc/hosts").write_text(spec["hosts"])
(root / "etc/passwd").write_text("dpsynth:x:10001:10001::/nonexistent:/usr/sbin/nologin\n")
(root / "etc/group").write_text("dpsynth:x:10001:\n")
(root / "opt/dpsynth").symlink_to(spec["platform"])
for path in ("bin", "lib"):
    (root / "opt/flower" / path).symlink_to(Path(spec["flower"]) / path)
for target, source, how in sorted(spec["mounts"], key=lambda mount: mount[0]):
    inside = root / target.lstrip("/")
    if source is not None:
        bind(source, inside, how)
        continue
    inside.mkdir(parents=True, exist_ok=True)
    call("mount", "-t", "tmpfs", "-o", f"noexec,nosuid,nodev,{how}", "scratch", inside)
call("mount", "-o", "remount,bind,ro", root)
if spec["core"] is not None:
    resource.setrlimit(resource.RLIMIT_CORE, (spec["core"], spec["core"]))
user, group = spec["user"]
os.chroot(root)
os.chdir("/opt")
no_rights = ("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--clear-groups")
arguments = ["setpriv", f"--reuid={user}", f"--regid={group}", *no_rights, *spec["command"]]
os.execvpe("setpriv", arguments, spec["environment"])
