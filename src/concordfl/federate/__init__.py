"""A federation over Flower, put together: `concordfl federate init` and `concordfl federate up`.

    project.py       the folders of a project: server, clients, whoever submits
    certificates.py  certificates and keys for trying it out
    templates/       start scripts and READMEs
    services.py      Flower's services as processes of this machine
    local.py         a whole project on this machine

Flower is only started, by its commands: `flwr` itself is imported nowhere here.
"""
