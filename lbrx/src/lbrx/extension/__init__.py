"""What other distributions build on: the only package of lbrx that they import.

A distribution names its modules in entry points; lbrx imports one when it is asked for a name that
it does not have. A module registers what it defines when it is imported.

```toml
[project.entry-points."lbrx.operations"]
cube = "toy.operations"    # @op(...) of lbrx.extension.operations
[project.entry-points."lbrx.kernels"]
cube = "toy.kernels"       # @computes("cube") and KernelFamily of lbrx.extension.kernels
[project.entry-points."lbrx.shaders"]
toy = "toy.shaders"        # a package with .metal files and headers, whose names are new
[project.entry-points."lbrx.formats"]
toys = "toy.files"         # register(FileFormat(...)) of lbrx.extension.files
[project.entry-points."lbrx.architecture_tables"]
toy = "toy.names"          # register_architecture(Architecture(...)) of lbrx.extension.files
[project.entry-points."lbrx.architectures"]
toy = "toy.network"        # class Network(Decoder) of lbrx.extension.models
[project.entry-points."lbrx.commands"]
toy = "toy.command"        # SUMMARY, add_arguments(parser) and run(options), for `lbrx toy`
[project.entry-points."lbrx.packages"]
toy = "toy"                # the package is `lbrx.toy` too
```

The names of the submodules are those of lbrx that may be relied on; others change without notice.
"""
