"""The simulated machine: sockets that stream weights through pipelined units, and its clock."""
