"""What trackers have written, read back with the tools' own libraries: {round: {name: value}}."""

import csv
import json
import struct
from collections import defaultdict


def numbers(record):
    """The figures of a record, by the names that are promised for them."""
    found = {"seconds": record["seconds"], "void_rounds": record["void_rounds"]}
    scopes = ("local", "validation", "global", "global_averaged", "bytes", "clusters", "missing")
    for scope in scopes:
        found |= {f"{scope}/{name}": value for name, value in record.get(scope, {}).items()}
    server = record.get("server", {})
    for name, value in server.items():
        if isinstance(value, dict):
            found |= {f"server/{name}/{key}": one for key, one in value.items()}
        elif isinstance(value, list):
            found |= {f"server/{name}/{number}": one for number, one in enumerate(value)}
        else:
            found[f"server/{name}"] = value
    return found


def of_records(records):
    return {record["round"]: numbers(record) for record in records}


def of_csv(folder):
    with open(folder / "figures.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    rounds = [int(row.pop("round")) for row in rows]
    assert len({*rounds}) == len(rounds)
    return {
        round: {name: float(value) for name, value in row.items() if value != ""}
        for round, row in zip(rounds, rows, strict=True)
    }


def of_tensorboard(folder):
    """Also, apart, what is said of the selected round."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder)).Reload()
    found, chosen = defaultdict(dict), {}
    for name in events.Tags()["scalars"]:
        for event in events.Scalars(name):
            if name.startswith("selected/"):
                chosen[name] = event.value
            else:
                assert name not in found[event.step]
                found[event.step][name] = event.value
    return dict(found), chosen


def of_mlflow(client, run_id):
    found = defaultdict(dict)
    for name in client.get_run(run_id).data.metrics:
        for metric in client.get_metric_history(run_id, name):
            assert name not in found[metric.step]
            found[metric.step][name] = metric.value
    return dict(found)


def of_wandb(folder):
    """History, config and summary of the only offline run, with its id.

    The library can no longer read its own file, so the container, LevelDB's log format, is read
    here; what it contains are the library's own protobuf messages.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    [file] = folder.glob("wandb/offline-run-*/*.wandb")
    history, config, summary, run_id = {}, {}, {}, None
    for data in _log_records(file.read_bytes()):
        record = Record.FromString(data)
        if record.HasField("history"):
            step = record.history.step.num
            assert step not in history
            history[step] = {
                _key(item): json.loads(item.value_json)
                for item in record.history.item
                if not _key(item).startswith("_")
            }
        elif record.HasField("run"):
            run_id = record.run.run_id
            config = {_key(one): json.loads(one.value_json) for one in record.run.config.update}
        elif record.HasField("summary"):
            summary |= {_key(one): json.loads(one.value_json) for one in record.summary.update}
    return history, config, summary, run_id


def _key(item):
    return item.key or "/".join(item.nested_key)


def _log_records(data, block=32768, head=7):
    at, parts = head, b""  # W&B's own header is as long as that of a record
    while at + head <= len(data):
        left = block - at % block
        _, length, kind = struct.unpack("<IHB", data[at : at + head])
        if left < head or kind == 0:
            at += left
            continue
        parts += data[at + head : at + head + length]
        at += head + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield parts
            parts = b""
