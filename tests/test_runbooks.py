"""The scripts for a TPU VM and a GPU host, with stand-ins for `gcloud` and whatever a machine of the cloud has."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_corpus import Numbers

from padir.data.prepare import prepare

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "running.md"

# The VM is a folder. Stand-ins write their arguments to the log, and fail where the true programs fail.
GCLOUD = """
echo "gcloud $*" >> "$LOG"
case "$4" in
    describe) cat "$STATE" 2>/dev/null ;;
    delete) [[ "$*" == *--quiet* ]] && rm "$STATE" ;;
    create) [[ ! -e "$STATE" ]] && echo READY > "$STATE" ;;
    scp) grep -q READY "$STATE" && cp "$5" "$VM/${6#*:}" ;;
    ssh) grep -q READY "$STATE" && cd "$VM" && HOME="$VM" bash -c "${7#--command=}" ;;
esac
"""
UV = """
echo "uv $*" >> "$LOG"
if [[ $1 == venv ]]; then
    mkdir -p .venv/bin && cp "$FAKES/python" .venv/bin
else
    [[ -x .venv/bin/python && -f constraints-3.11.txt && -f pyproject.toml ]] && cp "$FAKES/padir" .venv/bin
fi
"""
# It finds the program from its caller's folder, not from the unit's; the unit has only the variables that are named.
SYSTEMD_RUN = """
echo "systemd-run $*" >> "$LOG"
folder=/ variables=("PATH=$PATH" "LOG=$LOG" "FAKES=$FAKES" "STATUSES=$STATUSES" "PAUSE=$PAUSE")
while [[ $1 == --* ]]; do
    case "$1" in
        --working-directory=*) folder="${1#*=}" ;;
        --setenv=*) variables+=("${1#*=}") ;;
    esac
    shift
done
program="$(type -P "$1")" || { echo "Failed to find executable $1: No such file or directory" >&2; exit 1; }
program="$(realpath "$program")"
cd "$folder" && exec env -i "${variables[@]}" "$program" "${@:2}"
"""
STAND_INS = {
    "gcloud": GCLOUD,
    "curl": """
echo "curl $*" >> "$LOG"
echo 'mkdir -p "$HOME/.local/bin" && cp "$FAKES/uv_later" "$HOME/.local/bin/uv"' """,
    "uv_later": UV,
    "git": """tar czf "${4#--output=}" --transform 's,^,padir/,' scripts constraints-3.11.txt pyproject.toml""",
    "sudo": """HOME=/root exec "$@" """,
    "systemctl": "exit 3",
    "systemd-run": SYSTEMD_RUN,
    "python": "exit 0",
    "padir": """
echo "padir $*" >> "$LOG"
read -r status < "$STATUSES"; sed -i 1d "$STATUSES"; exit "$status" """,
}


@pytest.fixture
def machine(tmp_path):
    """The environment of a clean machine, and functions that run a script there and read the log."""
    for folder in ("vm", "fakes", "home"):
        (tmp_path / folder).mkdir()
    for name, content in STAND_INS.items():
        path = tmp_path / "fakes" / name
        path.write_text(f"#!/bin/bash\n{content}\n")
        path.chmod(0o755)
    names = {"LOG": "log", "STATE": "state", "VM": "vm", "FAKES": "fakes", "HOME": "home", "STATUSES": "statuses"}
    environment = {name: str(tmp_path / path) for name, path in names.items()}
    return {**environment, "PATH": f"{tmp_path / 'fakes'}:/usr/bin:/bin", "PAUSE": "0"}


def run(machine, script, *arguments, statuses=(0,)):
    """(exit status, commands that ran) of a script on the machine, whose trainings end with the given statuses."""
    Path(machine["STATUSES"]).write_text("".join(f"{status}\n" for status in statuses))
    Path(machine["LOG"]).write_text("")
    done = subprocess.run([script, *arguments], env=machine, capture_output=True, text=True)
    print(done.stderr)  # pytest shows it if the test fails
    return done.returncode, Path(machine["LOG"]).read_text().splitlines()


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").glob("*.sh")), ids=lambda path: path.name)
def test_scripts_are_whole(script):
    subprocess.run(["bash", "-n", str(script)], check=True)


TPU_VM = str(ROOT / "scripts" / "tpu_vm.sh")


def test_a_tpu_vm_is_made_and_trains(machine):
    if not (ROOT / ".git").exists():
        pytest.skip("the script copies the last commit: needs a clone")
    Path(machine["FAKES"], "git").unlink()
    options = ["v5litepod-8", "gs://bucket", "wmt14_de_en", "--gin.train.seed=1"]
    status, log = run(machine, TPU_VM, "mine", "zone", *options)
    assert status == 0
    (trained,) = (line for line in log if line.startswith("padir "))
    assert trained == (
        "padir train --gin_file=configs/run/wmt14_de_en.gin --data gs://bucket/data/wmt14_de_en_distilled"
        " --model_dir gs://bucket/runs/wmt14_de_en --gin.train.seed=1"
    )
    assert [line for line in log if line.startswith("uv ")] == [
        "uv venv --allow-existing --python 3.11 .venv",
        "uv pip install --python .venv/bin/python --constraint constraints-3.11.txt .[gcs] jax[tpu]",
    ]
    assert sum(line.startswith("curl ") for line in log) == 1 and sum("--worker=all" in line for line in log) == 2


@pytest.mark.parametrize(
    ("kind", "image"),
    [("v3-8", "tpu-ubuntu2204-base"), ("v5litepod-8", "v2-alpha-tpuv5-lite"), ("v6e-8", "v2-alpha-tpuv6e")],
)
def test_a_vm_has_the_image_of_its_kind_and_is_made_once(machine, kind, image):
    def commands():
        status, log = run(machine, TPU_VM, "mine", "zone", kind, "gs://bucket", "wmt14_de_en")
        assert status == 0
        return [line.removeprefix("gcloud compute tpus tpu-vm ") for line in log if line.startswith("gcloud ")]

    assert f"create mine --accelerator-type {kind} --version {image} --spot --zone zone" in commands()
    assert [command.split()[0] for command in commands()] == ["describe", "scp", "ssh"]
    Path(machine["STATE"]).write_text("PREEMPTED\n")
    assert [command.split()[0] for command in commands()] == ["describe", "delete", "create", "scp", "ssh"]


def test_a_training_that_runs_is_not_started_again(machine):
    Path(machine["FAKES"], "systemctl").write_text("#!/bin/bash\nexit 0\n")
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", "gs://bucket", "wmt14_de_en")
    assert status == 0 and not any(line.startswith(("padir ", "systemd-run ")) for line in log)


def test_the_true_systemd_run_finds_the_script(machine, capsys):
    """It looks for the program, and only then for the bus, which is not here."""
    true = shutil.which("systemd-run")
    if true is None or Path("/run/systemd/system").exists():
        pytest.skip("needs systemd-run on a machine without systemd, where it starts nothing")
    Path(machine["FAKES"], "systemd-run").write_text(f'#!/bin/bash\nLC_ALL=C exec {true} "$@"\n')
    status, _ = run(machine, TPU_VM, "mine", "zone", "v3-8", "gs://bucket", "wmt14_de_en")
    errors = capsys.readouterr().out
    assert status == 1 and "Failed to connect to bus" in errors and "Failed to find executable" not in errors


def test_what_is_wrong_is_refused_before_gcloud(machine):
    for run_name in ("no_such_run", "general_de_en_cpu"):  # the second one names no folder by a macro
        assert run(machine, TPU_VM, "mine", "zone", "v3-8", "gs://bucket", run_name) == (2, [])
    assert run(machine, TPU_VM, "mine", "zone", "h100-8", "gs://bucket", "wmt14_de_en") == (2, [])
    assert run(machine, TPU_VM, "mine", "zone") == (2, [])


@pytest.fixture
def host(machine, tmp_path):
    """A folder with the script for a host, which therefore makes its environment there."""
    return str(clone(tmp_path) / "scripts" / "train_host.sh")


def clone(folder):
    """A folder with what `train_host.sh` needs of a checkout, beside which it makes its environment."""
    for name in ("scripts/train_host.sh", "constraints-3.11.txt", "pyproject.toml"):
        path = folder / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)  # the mode, too: a host runs the script by its name
    return folder / "clone"


@pytest.mark.parametrize(
    ("statuses", "tries"),
    [([0], 1), ([2], 1), ([130], 1), ([143], 1), ([1, 137, 0], 3), ([1, 2], 2), ([139, 130], 2), ([1] * 5, 5)],
)
def test_training_is_repeated_after_errors_only(machine, host, statuses, tries):
    status, log = run(machine, host, "cuda13", "--gin_file=x.gin", statuses=[*statuses, 0, 0])
    assert status == statuses[-1]
    assert log.count("padir train --gin_file=x.gin") == tries


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_waits_for_the_checkpoint_and_ends_the_loop(machine, host, sent):
    Path(machine["FAKES"], "padir").write_text(
        """#!/bin/bash
trap 'sleep 0.5; echo saved; exit 130' INT TERM HUP
echo started
while true; do sleep 0.1; done
"""
    )
    command = ["env", "--default-signal", host, "tpu"]  # tests in the background ignore SIGINT
    process = subprocess.Popen(command, env=machine, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    os.killpg(process.pid, sent)  # as a terminal, systemd and tmux do
    assert (process.communicate(timeout=60)[0], process.returncode) == ("saved\n", 130)


def test_without_its_device_a_host_does_not_train(machine, host):
    Path(machine["FAKES"], "python").write_text("#!/bin/bash\nexit 1\n")
    status, log = run(machine, host, "cuda13", "--gin_file=x.gin")
    assert status == 1 and not any(line.startswith("padir ") for line in log)


def test_the_papers_run_starts_on_a_gpu_host(machine, tokenizer, tmp_path):
    """The page's own command with --print_config and the true padir."""
    folder = tmp_path / "data"
    prepare(Numbers(), tokenizer, folder, progress=False)
    (command,) = (line for line in PAGE.read_text().splitlines() if "train_host.sh cuda13" in line)
    script, *arguments = command.split(" \\;")[0].split("-s padir ")[1].split()
    checkout = clone(tmp_path)
    (checkout / "configs").symlink_to(ROOT / "configs")
    true = f'#!/bin/bash\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m padir "$@"\n'
    Path(machine["FAKES"], "padir").write_text(true)
    options = [*arguments, "--data", str(folder), "--model_dir", str(tmp_path / "model"), "--print_config"]
    machine = {**machine, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([checkout / script, *options], env=machine, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Batching.rows = 256" in done.stdout and not (tmp_path / "model").exists()
