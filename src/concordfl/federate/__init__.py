"""A federation over Flower, put together: `concordfl federate init` and `concordfl federate up`.

    project.py       a project: its clients, its settings
    contents.py      what its files hold; templates/ are its scripts and READMEs
    certificates.py  certificates and keys for trying it out
    init.py          writes it, as a whole or not at all
    services.py      processes and all that they have started
    local.py         a whole project on this machine

Flower's services are only started, by their commands.
"""
