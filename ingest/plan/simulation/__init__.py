"""Virtual ranks over one trace: what each would send, and how long it would take under a model of the links."""
