//! Private PostgreSQL clusters: find the server's binaries, install them, start a cluster, stop it.
