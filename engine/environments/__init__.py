"""Stage 2, environments: a process per plugin version; episodes ask, the engine answers.

Others use ``service``. Below it stand ``registry`` (which plugins there are), ``plugin`` (which of its versions
serves), ``serving`` (one version, for as long as somebody needs it) and ``process`` (one process of it). ``files`` says
what a version is, ``dependencies`` what it runs on, ``conformance`` whether it is fit to train on.
"""
