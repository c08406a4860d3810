"""A real federation, over Flower: a SuperLink, and a SuperNode per client.

    parcel.py      what is inside Flower's records: the protocol's own bytes
    meeting.py     which node is which client
    agreement.py   how clients with folders of their own come to read examples alike
    executor.py    the server's side: an executor that brings orders to nodes elsewhere
    members.py     who takes part in a run, and what all of them must agree on
    host.py        the client's side: a node of one client
    own_folder.py  a client's own folder: what it tells to agree, its examples as agreed
    client_store.py  what a client keeps on its own disk
    carrier.py     Flower's Grid
    server.py      the ServerApp
    client.py      the ClientApp

`flwr` is imported by the last three alone. No method knows of it.
"""
