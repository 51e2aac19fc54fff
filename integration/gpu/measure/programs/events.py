"""Events that ordinary programs make: no warning, no denial."""

from measure.memory import card
from measure.node import NCCL_OPTIONS
from measure.programs.places import MEMORY
from measure.programs.rows import FAILS, SAME, Row, installed

POLLED = ("name,uuid,pci.bus_id,memory.total,memory.used,memory.free,utilization.gpu,"
          "utilization.memory,temperature.gpu,power.draw,power.limit,clocks.sm,clocks.mem,"
          "clocks_event_reasons.active,ecc.errors.corrected.volatile.total,"
          "ecc.errors.uncorrected.volatile.total,pcie.link.gen.current,pcie.link.width.current,"
          "encoder.stats.sessionCount,fan.speed,pstate,compute_mode,mig.mode.current")
# Name, package, command; all that a day's monitoring asks for is asked for by the last.
ORDINARY = [
    ("PyTorch", "torch", ["python3", "@torch_check.py"]),
    ("JAX", "jax", ["python3", "@program_loads.py", "jax"]),
    ("nvidia-smi", None, ["sh", "-c", "nvidia-smi && nvidia-smi -q && nvidia-smi -L"]),
    ("monitoring", None, ["sh", "-c", "nvidia-smi dmon -c 3 -s pucvmet && nvidia-smi pmon -c 2 && "
                          f"nvidia-smi --query-gpu={POLLED} --format=csv && nvidia-smi "
                          "--query-compute-apps=pid,used_memory --format=csv"])]
WRONG = ("warning", "denied")


def told(node, container):
    """The events about a container that mean something is wrong, as lines."""
    told_of = node.json("events", "--container", container)
    if not any(one["kind"] == "admitted" for one in told_of):
        return ["no event says that the container was admitted"]
    return [f"{one['kind']} x{one['count']}: {one['text']}" for one in told_of
            if one["kind"] in WRONG]


def events(places, rows, _):
    """Starts each program in a container of its own, so that its events are known by that."""
    for number, (name, package, command) in enumerate(ORDINARY):
        title, version = f"events of {name}", installed(package) if package else ""
        if package and not version:
            rows.skip(title, 1, f"python3 has no {package}")
            continue
        lines = events_of(places, f"ordinary{number}", command)
        if lines is None:
            rows.skip(title, 1, "the program fails outside, too", version)
            continue
        rows.report.check(f"{title}: no warning and no denial", not lines, *lines)
        rows.rows.append(Row(title, version, 1, FAILS if lines else SAME, "; ".join(lines[:3])))


def events_of(places, container, command):
    """Returns what is wrong with a program in a container of its own; None if it fails outside."""
    node, folder = places.node, places.shared
    mount = f"type=bind,src={folder},dst={folder},options=rbind:rw"
    node.launch(container, card(0, MEMORY), options=[*NCCL_OPTIONS, "--mount", mount])
    command = [part.replace("@", f"{folder}/") if part.startswith("@") else part
               for part in command]
    end = node.outcome(container, "timeout", "90", *command)
    lines = told(node, container)
    node.stop(container)
    if end.code:
        print(*end.text.splitlines()[-10:], sep="\n")
        if places.run("outside", command, 90).code:
            return None
        lines.append(f"exit {end.code}, but not outside")
    return lines
