"""The scripts for a TPU VM and a GPU host, with stand-ins for `gcloud` and whatever a machine of the cloud has."""

import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.small_corpus import Numbers

from padir.data.prepare import prepare

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "running.md"

# The VM is a folder. Stand-ins write their arguments to the log, and fail where the true programs fail.
GCLOUD = """
echo "gcloud $*" >> "$LOG"
if [[ $1 == storage ]]; then
    [[ "$3" == gs://bucket/* ]] && ! grep -qsxF "$3" "$STATE.lacking"
    exit
fi
if [[ $3 == queued-resources ]]; then
    case "$4" in
        create) [[ ! -e "$STATE.queue" ]] && echo "$QUEUE" > "$STATE.queue" ;;
        describe) cat "$STATE.queue" 2>/dev/null || { echo "NOT_FOUND" >&2; exit 1; }
            [[ "$QUEUE" == FAILED ]] || grep -q SUSPENDED "$STATE.queue" || echo READY > "$STATE" ;;
        delete) [[ "$*" == *--force*--quiet* ]] && rm "$STATE.queue" ;;
    esac
    exit
fi
case "$4" in
    describe) [[ -e "$STATE" ]] || exit 1; state="$(cat "$STATE")"
        [[ "$*" != *acceleratorType* ]] || state+=" $(cat "$STATE.type" 2>/dev/null)"
        echo "$state" ;;
    delete) [[ "$*" == *--quiet* ]] && rm "$STATE" ;;
    create) [[ ! -e "$STATE" ]] && echo READY > "$STATE" && echo "$7" > "$STATE.type" ;;
    start) grep -q STOPPED "$STATE" && echo READY > "$STATE" ;;
    scp) [[ ! -e "$STATE.deaf" ]] || { rm "$STATE.deaf"; echo "Connection refused" >&2; exit 255; }
        grep -q READY "$STATE" && cp "$5" "$VM/${6#*:}" ;;
    ssh) grep -q READY "$STATE" && cd "$VM" && HOME="$VM" bash -c "${7#--command=}" ;;
esac
"""
UV = """
echo "uv $*" >> "$LOG"
if [[ -e "$STATE.down.$1" ]]; then rm "$STATE.down.$1"; echo "error: Request failed after 3 retries" >&2; exit 2; fi
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
if [[ -e "$STATE.down.curl" ]]; then
    rm "$STATE.down.curl"; echo "curl: (6) Could not resolve host: astral.sh" >&2; exit 6
fi
echo 'mkdir -p "$HOME/.local/bin" && cp "$FAKES/uv_later" "$HOME/.local/bin/uv"' """,
    "uv_later": UV,
    "git": """if [[ $1 == cat-file ]]; then [[ "$3" != *_en_de.gin ]]; exit; fi
tar czf "${4#--output=}" --transform 's,^,padir/,' scripts configs constraints-3.11.txt pyproject.toml""",
    "sudo": """HOME=/root exec "$@" """,
    "ssh": "exit 255",
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
    environment["QUEUE"] = "WAITING_FOR_RESOURCES"
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
RUN = ["gs://bucket", "wmt14_de_en"]
STUDENT = [*RUN, "student"]
SCOPES = "--scopes https://www.googleapis.com/auth/cloud-platform"


def test_a_tpu_vm_is_made_and_trains(machine):
    if not (ROOT / ".git").exists():
        pytest.skip("the script copies the last commit: needs a clone")
    Path(machine["FAKES"], "git").unlink()
    options = ["v5litepod-8", *RUN, "teacher,distill,student,evaluate", "--gin.train.seed=1", "--coordinator", "auto"]
    status, log = run(machine, TPU_VM, "mine", "zone", *options, statuses=[0] * 4)
    assert status == 0
    together = " --coordinator auto"
    assert [line for line in log if line.startswith("padir ")] == [
        "padir train --gin_file=configs/run/wmt14_de_en_ar.gin --data gs://bucket/data/wmt14_de_en"
        f" --model_dir gs://bucket/runs/wmt14_de_en_ar --gin.train.seed=1{together}",
        "padir distill --model gs://bucket/runs/wmt14_de_en_ar --data gs://bucket/data/wmt14_de_en"
        f" --output gs://bucket/data/wmt14_de_en_distilled --beam 5 --batch_size 256{together}",
        "padir train --gin_file=configs/run/wmt14_de_en.gin --data gs://bucket/data/wmt14_de_en_distilled"
        f" --model_dir gs://bucket/runs/wmt14_de_en --gin.train.seed=1{together}",
        "padir evaluate --model padir=gs://bucket/runs/wmt14_de_en teacher=gs://bucket/runs/wmt14_de_en_ar"
        " --data gs://bucket/data/wmt14_de_en --mode refine causal --num_steps 4 10 --num_lengths 5 --beam 5"
        f" --output results/wmt14_de_en{together}",
    ]
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
        status, log = run(machine, TPU_VM, "mine", "zone", kind, *STUDENT)
        assert status == 0
        return [line.removeprefix("gcloud compute tpus tpu-vm ") for line in log if " tpu-vm " in line]

    assert f"create mine --accelerator-type {kind} --version {image} {SCOPES} --spot --zone zone" in commands()
    assert [command.split()[0] for command in commands()] == ["describe", "scp", "ssh"]
    Path(machine["STATE"]).write_text("PREEMPTED\n")
    assert [command.split()[0] for command in commands()] == ["describe", "delete", "create", "scp", "ssh"]


def test_a_new_vm_may_answer_later(machine):
    Path(machine["STATE"] + ".deaf").touch()
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)
    assert status == 0 and sum(" scp " in line for line in log) == 2


def test_a_vm_that_does_not_answer_can_be_deleted(machine, capsys):
    Path(machine["STATE"]).write_text("CREATING\n")
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)
    errors = capsys.readouterr().out
    assert status == 1 and sum(" scp " in line for line in log) == 5 and "(its state is CREATING)" in errors
    assert (
        "If mine exists, it costs money. To delete it: gcloud compute tpus tpu-vm delete mine --zone zone\n" in errors
    )


def test_a_vm_that_was_stopped_is_started(machine):
    Path(machine["STATE"]).write_text("STOPPED\n")
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)
    of_vm = [line.split()[4] for line in log if line.startswith("gcloud compute tpus tpu-vm ")]
    assert status == 0 and of_vm == ["describe", "start", "scp", "ssh"]


def test_a_vm_on_demand_or_from_the_queue(machine, capsys):
    def commands(**changes):
        _, log = run({**machine, **changes}, TPU_VM, "mine", "zone", "v5litepod-8", *STUDENT)
        return [line.removeprefix("gcloud compute tpus ") for line in log if line.startswith("gcloud compute ")]

    image = "v2-alpha-tpuv5-lite"
    made = f"tpu-vm create mine --accelerator-type v5litepod-8 --version {image} {SCOPES} --zone zone"
    assert made in commands(CAPACITY="on-demand")
    Path(machine["STATE"]).unlink()
    queued = commands(CAPACITY="queued")
    made = f"--node-id mine --accelerator-type v5litepod-8 --runtime-version {image} {SCOPES} --zone zone"
    assert f"queued-resources create mine {made}" in queued and "tpu-vm ssh" in queued[-1]
    Path(machine["STATE"]).unlink()  # the script was stopped while it waited: it waits again in its place
    assert not any("create" in command for command in commands(CAPACITY="queued"))
    Path(
        machine["STATE"]
    ).unlink()  # the VM is gone and CAPACITY forgotten: no spot VM, and the entry is deleted at the end
    capsys.readouterr()
    assert not any("create" in command for command in commands())
    assert "gcloud compute tpus queued-resources delete mine --zone zone --force\n" in capsys.readouterr().out
    for name in (machine["STATE"], machine["STATE"] + ".queue"):
        Path(name).unlink()
    assert not any(" ssh " in command for command in commands(CAPACITY="queued", QUEUE="FAILED"))
    Path(machine["STATE"] + ".queue").write_text("SUSPENDED\n")  # its VM was deleted: the entry gives no other
    again = [command for command in commands() if command.startswith("queued-resources ")]
    assert [command.split()[1] for command in again if "describe" not in command] == ["delete", "create"]


def test_a_queue_that_cannot_be_read_makes_no_vm(machine):
    path = Path(machine["FAKES"], "gcloud")
    path.write_text(path.read_text().replace('echo "NOT_FOUND"', 'echo "503"'))
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)
    assert status == 1 and not any("create" in line for line in log)


def test_a_vm_of_another_kind_is_not_taken(machine):
    assert run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)[0] == 0
    status, log = run(machine, TPU_VM, "mine", "zone", "v6e-8", *STUDENT)
    assert status == 2 and not any(" scp " in line or " ssh " in line for line in log)


def test_what_padir_would_refuse_makes_no_vm(machine):
    if not (ROOT / ".venv/bin/padir").exists():
        pytest.skip("the script asks the padir of its environment")
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT, "--gin.Batching.acumulation_steps=2")
    assert status == 2 and not any("create" in line for line in log)
    Path(machine["STATE"] + ".lacking").write_text("gs://bucket/runs/wmt14_de_en_ar/manifest.json\n")
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *RUN, "distill")
    assert status == 1 and not any("create" in line for line in log)


def test_a_training_that_runs_is_not_started_again(machine):
    Path(machine["FAKES"], "systemctl").write_text("#!/bin/bash\nexit 0\n")
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)
    assert status == 1 and not any(line.startswith(("padir ", "systemd-run ")) for line in log)


def test_the_true_systemd_run_finds_the_script(machine, capsys):
    """It looks for the program, and only then for the bus, which is not here."""
    true = shutil.which("systemd-run")
    if true is None or Path("/run/systemd/system").exists():
        pytest.skip("needs systemd-run on a machine without systemd, where it starts nothing")
    Path(machine["FAKES"], "systemd-run").write_text(f'#!/bin/bash\nLC_ALL=C exec {true} "$@"\n')
    status, _ = run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT)
    errors = capsys.readouterr().out
    assert status == 1 and "Failed to connect to bus" in errors and "Failed to find executable" not in errors


def test_what_is_wrong_is_refused_before_gcloud(machine):
    for run_name in ("no_such_run", "general_de_en_cpu"):  # the second one names no folder by a macro
        assert run(machine, TPU_VM, "mine", "zone", "v3-8", "gs://bucket", run_name, "student") == (2, [])
    for kind in ("h100-8", "v2-8"):
        assert run(machine, TPU_VM, "mine", "zone", kind, *STUDENT) == (2, [])
    assert run(machine, TPU_VM, "mine", "zone", "v3-8", *RUN, "teacher,score") == (2, [])
    for option in ("--coordinator=auto", "auto"):
        assert run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT, option) == (2, [])
    assert run(machine, TPU_VM, "mine", "zone", "v3-8", "s3://bucket", "wmt14_de_en", "student") == (2, [])
    assert run({**machine, "CAPACITY": "free"}, TPU_VM, "mine", "zone", "v3-8", *STUDENT) == (2, [])
    assert run(machine, TPU_VM, "mine", "zone") == (2, [])
    uncommitted = ["gs://bucket", "wmt14_en_de", "student"]
    assert run(machine, TPU_VM, "mine", "zone", "v3-8", *uncommitted) == (2, [])


@pytest.mark.parametrize("program", ["gcloud", "git", "ssh"])
def test_a_program_that_is_missing_is_named(machine, tmp_path, capsys, program):
    few = tmp_path / "few"
    few.mkdir()
    for name in ("bash", "dirname"):
        (few / name).symlink_to(shutil.which(name) or name)
    Path(machine["FAKES"], program).unlink()
    machine = {**machine, "PATH": f"{machine['FAKES']}:{few}"}
    assert run(machine, TPU_VM, "mine", "zone", "v3-8", *STUDENT) == (2, [])
    assert f"scripts/tpu_vm.sh needs {program}: install it\n" in capsys.readouterr().out


@pytest.mark.parametrize(("stages", "data"), [("teacher,student", "wmt14_de_en"), ("student", "wmt14_de_en_distilled")])
def test_without_data_no_vm_is_made(machine, stages, data):
    status, log = run(machine, TPU_VM, "mine", "zone", "v3-8", "gs://empty", "wmt14_de_en", stages)
    assert (status, log) == (1, [f"gcloud storage ls gs://empty/data/{data}/manifest.json"])


@pytest.mark.parametrize(
    ("stages", "last_file"),
    [
        ("teacher,distill", "data/wmt14_de_en_distilled/manifest.json"),
        ("student,evaluate", "results/wmt14_de_en.json"),
    ],
)
def test_the_loop_of_the_page_outlives_a_preemption_and_an_error(machine, tmp_path, stages, last_file):
    """Until the last file is there; then it deletes the VM. The stages end at once here, and `sleep` does not wait."""
    loops = re.findall(r"^ +until gcloud storage ls .*?--quiet$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (loop,) = (loop for loop in loops if f" {stages}\n" in loop)
    for name, value in {"NAME": "mine", "ZONE": "zone", "TYPE": "v5litepod-8", "BUCKET": "bucket"}.items():
        loop = loop.replace(name, value)
    Path(machine["FAKES"], "sleep").write_text('#!/bin/bash\necho "sleep $*" >> "$LOG"\n')
    Path(machine["FAKES"], "sleep").chmod(0o755)
    lacking = Path(machine["STATE"] + ".lacking")
    lacking.write_text(f"gs://bucket/{last_file}\n")
    preempted, refused = f"echo PREEMPTED > {machine['STATE']}; exit 143", "exit 2"
    tries = tmp_path / "tries"
    tries.write_text("\n".join([preempted, refused, "exit 0", f"rm {lacking}", ""]))
    Path(machine["FAKES"], "padir").write_text(
        f'#!/bin/bash\necho "padir $*" >> "$LOG"\nnext="$(head -n 1 {tries})"; sed -i 1d {tries}; eval "$next"\n'
    )
    done = subprocess.run(["bash", "-c", loop], env=machine, cwd=ROOT, capture_output=True, text=True, timeout=60)
    log = Path(machine["LOG"]).read_text().splitlines()
    assert done.returncode == 0, done.stderr
    of_vm = [line.split()[4] for line in log if line.startswith("gcloud compute tpus tpu-vm ")]
    start = ["scp", "ssh"]
    made = ["describe", "create", *start, "describe", "delete", "create", *start]
    assert of_vm == [*made, "describe", *start, "delete"] and not Path(machine["STATE"]).exists()
    first, last = ("train", "distill") if stages == "teacher,distill" else ("train", "evaluate")
    assert [line.split()[1] for line in log if line.startswith("padir ")] == [first, first, first, last]


@pytest.fixture
def host(machine, tmp_path):
    """A folder with the script for a host, which therefore makes its environment there."""
    return str(clone(tmp_path) / "scripts" / "train_host.sh")


def clone(folder):
    """A folder with what `train_host.sh` needs of a checkout, beside which it makes its environment."""
    runs = [f"configs/run/wmt14_de_en{kind}.gin" for kind in ("", "_ar")]
    for name in ("scripts/train_host.sh", "constraints-3.11.txt", "pyproject.toml", *runs):
        path = folder / "clone" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, path)  # the mode, too: a host runs the script by its name
    return folder / "clone"


@pytest.mark.parametrize(
    ("statuses", "tries"),
    [([0], 1), ([2], 1), ([130], 1), ([143], 1), ([1, 137, 0], 3), ([1, 2], 2), ([139, 130], 2), ([1] * 5, 5)],
)
def test_training_is_repeated_after_errors_only(machine, host, statuses, tries):
    status, log = run(machine, host, "cuda13", *STUDENT, statuses=[*statuses, 0, 0])
    assert status == statuses[-1]
    assert sum(line.startswith("padir train --gin_file=configs/run/wmt14_de_en.gin ") for line in log) == tries


def test_a_stage_that_fails_is_repeated_before_the_next(machine, host):
    status, log = run(machine, host, "tpu", *RUN, "distill,student", statuses=[1, 0, 137, 0])
    commands = [line.split()[1] for line in log if line.startswith("padir ")]
    assert status == 0 and commands == ["distill", "distill", "train", "train"]
    status, log = run(machine, host, "tpu", *RUN, "distill,student", statuses=[130])
    assert status == 130 and sum(line.startswith("padir ") for line in log) == 1


@pytest.mark.parametrize(("place", "kept"), [("gs://bucket", "gs://bucket/jax_cache none"), (".", " ")])
def test_compiled_programs_are_kept_in_the_bucket(machine, host, place, kept):
    names = '"$JAX_COMPILATION_CACHE_DIR $JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES"'
    Path(machine["FAKES"], "padir").write_text(f'#!/bin/bash\necho {names} >> "$LOG"\n')
    status, log = run(machine, host, "cuda13", place, "wmt14_de_en", "student")
    assert status == 0 and log[-1] == kept


def test_results_go_to_the_bucket(machine, host, tmp_path):
    """With the true Python and the store on disk."""
    write = "mkdir -p results/wmt14_de_en.rows && cd results && echo 1 | tee x.json wmt14_de_en.json wmt14_de_en.rows/a"
    Path(machine["FAKES"], "padir").write_text(f"#!/bin/bash\n{write}\n")
    fake = "import sys; from support.bucket import install; install(); exec(sys.stdin.read())"
    # The store answers the second time.
    down = 'if [[ $1 == - && ! -e "$STATE.tried" ]]; then touch "$STATE.tried"; exit 1; fi'
    true = f"""{down}
[[ $1 == -c ]] || PYTHONPATH="{ROOT / "tests"}" exec "{sys.executable}" -c '{fake}' "${{@:2}}" """
    Path(machine["FAKES"], "python").write_text(f"#!/bin/bash\n{true}")
    for _ in range(2):  # an evaluation that is repeated replaces them
        status, _ = run({**machine, "BUCKETS": str(tmp_path / "b")}, host, "cuda13", *RUN, "evaluate")
    sent = {str(path.relative_to(tmp_path / "b")) for path in (tmp_path / "b").rglob("*") if path.is_file()}
    assert status == 0 and sent == {f"bucket/results/wmt14_de_en.{end}" for end in ("json", "rows/a")}


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_waits_for_the_checkpoint_and_ends_the_loop(machine, host, sent):
    Path(machine["FAKES"], "padir").write_text(
        """#!/bin/bash
trap 'sleep 0.5; echo saved; exit 130' INT TERM HUP
echo started
while true; do sleep 0.1; done
"""
    )
    command = ["env", "--default-signal", host, "tpu", *STUDENT]  # tests in the background ignore SIGINT
    process = subprocess.Popen(command, env=machine, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    os.killpg(process.pid, sent)  # as a terminal does with Ctrl-C, and systemd
    assert (process.communicate(timeout=60)[0], process.returncode) == ("saved\n", 130)


@pytest.mark.skipif(shutil.which("setsid", path="/usr/bin:/bin") is None, reason="needs setsid of util-linux")
def test_a_terminal_that_is_gone_stops_padir_once(machine, host, tmp_path):
    """As with `tmux kill-session`: the kernel sends SIGHUP to the script, the session's leader, and then to padir."""
    signals = tmp_path / "signals"
    Path(machine["FAKES"], "padir").write_text(
        f"""#!/bin/bash
trap 'echo signal >> {signals}' INT TERM HUP
echo started
while [[ ! -e {signals} ]]; do sleep 0.1; done
sleep 0.5
echo saved >> {signals}
exit 130
"""
    )
    terminal, end = pty.openpty()
    process = subprocess.Popen(
        ["env", "--default-signal=HUP", "setsid", "--ctty", host, "tpu", *STUDENT],  # the tests may run under nohup
        env=machine,
        stdin=end,
        stdout=end,
        stderr=end,
    )
    os.close(end)
    shown = ""
    while "started" not in shown:
        shown += os.read(terminal, 1000).decode()
    os.close(terminal)
    assert process.wait(timeout=60) == -signal.SIGHUP
    begun = time.monotonic()
    while "saved" not in (text := signals.read_text() if signals.exists() else "") and time.monotonic() < begun + 60:
        time.sleep(0.1)
    assert text == "signal\nsaved\n"


@pytest.mark.parametrize("down", ["curl", "venv", "pip"])
def test_setting_up_is_repeated(machine, host, down):
    Path(machine["STATE"] + f".down.{down}").touch()
    status, log = run(machine, host, "tpu", *STUDENT)
    assert status == 0 and sum(line.startswith("padir ") for line in log) == 1
    assert not Path(machine["STATE"] + f".down.{down}").exists()


def test_without_its_device_a_host_does_not_train(machine, host):
    Path(machine["FAKES"], "python").write_text("#!/bin/bash\nexit 1\n")
    status, log = run(machine, host, "cuda13", *STUDENT)
    assert status == 1 and not any(line.startswith("padir ") for line in log)
    assert sum(line.startswith("uv pip ") for line in log) == 5


@pytest.mark.parametrize("may", [True, False])
def test_the_bucket_is_tried_before_the_stages(machine, host, tmp_path, capsys, may):
    """With the true Python and a store on disk, or without one."""
    code = f"""if [[ "$2" == *RemoteFolder* ]]; then
    export PYTHONPATH="{ROOT}:{ROOT / "tests"}"
    exec "{sys.executable}" -c "from support.bucket import install; install(); $2" "${{@:3}}"
fi"""
    Path(machine["FAKES"], "python").write_text(f"#!/bin/bash\n{code}\n")
    buckets = str(tmp_path / "b") if may else "/proc/no_bucket"  # the second can be made by nobody
    status, log = run({**machine, "BUCKETS": buckets}, host, "cuda13", *STUDENT)
    assert (status, sum(line.startswith("padir ") for line in log)) == ((0, 1) if may else (1, 0))
    assert may or "cannot be reached (FileNotFoundError" in capsys.readouterr().out


def test_the_papers_run_starts_on_a_gpu_host(machine, tokenizer, tmp_path):
    """The page's own command with --print_config and the true padir."""
    place = tmp_path / "place"
    prepare(Numbers(), tokenizer, place / "data" / "wmt14_de_en", progress=False)
    (command,) = (line for line in PAGE.read_text().splitlines() if "train_host.sh cuda13" in line)
    script, device, here, name, stages = command.split(" \\;")[0].split("-s padir ")[1].split()
    assert (here, stages) == (".", "teacher,distill,student,evaluate")
    checkout = clone(tmp_path)
    shutil.rmtree(checkout / "configs")
    (checkout / "configs").symlink_to(ROOT / "configs")
    true = f'#!/bin/bash\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m padir "$@"\n'
    Path(machine["FAKES"], "padir").write_text(true)
    command = [checkout / script, device, str(place), name, "teacher,student", "--print_config"]
    machine = {**machine, "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, env=machine, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Batching.rows = 512") == 2 and not (place / "runs").exists()
