"""Clients whose data are their own folders, over Flower's apps on a Grid in memory."""

import shutil

import tomli_w

import concordfl as cf
from concordfl.engine.flower import server
from concordfl.engine.flower.carrier import GridCarrier
from fake_carrier import FakeTime
from fake_grid import FakeGrid

SHARE_ALL = "size,labels,group,digest"


def own_folders(clients, place):
    """A folder per client, with a copy of its file or folder of images in `clients`."""
    found = {}
    for path in sorted(clients.iterdir()):
        name = path.name if path.is_dir() else path.stem
        found[name] = place / name
        if path.is_dir():
            shutil.copytree(path, found[name])
        else:
            found[name].mkdir(parents=True)
            shutil.copy(path, found[name] / f"data{path.suffix}")
    return found


def grid_of(folders, states, **config):
    """A grid with a node for every client."""
    return FakeGrid(
        {
            number: {
                **{"name": name, "data": str(folder), "states": str(states / name)},
                **{"share": SHARE_ALL, **config},
            }
            for number, (name, folder) in enumerate(folders.items(), 11)
        }
    )


def federate(grid, out, run, **given):
    count = len(grid.node_configs)
    table = {"run": tomli_w.dumps(run), "out": str(out), "clients": count, "wait": 5.0, **given}
    settings = server.ServerSettings.from_table(table, "run-config")
    return server.serve(GridCarrier(grid), settings, FakeTime())


def simulate(clients, run):
    """The same run file in one process, where the folder of all clients is."""
    data = {**run["data"], "folder": str(clients)}
    return cf.run({**run, "data": data, "run": {**run["run"], "executor": "serial"}})
