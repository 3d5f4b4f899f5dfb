"""aotpack takes the just-in-time compile out of LLM serving.

On a build machine with no GPU it finds every compile key that an engine's Triton kernels can meet, compiles each
for each GPU architecture, and packs the result into one bundle; in a container it lays the kernels into Triton's
cache, so that neither start-up nor the first request compiles anything.

The road that data takes::

    engine + deployments --families, traced--> compile keys --compile--> artifacts --> bundle --install--> cache

Each module holds one noun, and imports go down this list only: ``cli``, ``report``, ``coverage``, ``build``,
``install`` and ``runtime``, ``pool``, ``bundle``, ``helpers``, ``tritoncache``, ``receipts``, ``record``,
``compiler``, ``tracing``, ``families``, ``engines``, ``deployments``, ``models``, ``manifest``, ``archive``,
``toolchain``, ``keys``, ``targets``, ``elf`` and ``interpreters``, ``documents`` and ``atomic``, ``digests``,
``findings``, ``errors``. torch is imported in worker processes alone; Triton there, by ``toolchain`` and ``helpers``
when asked, and by ``runtime`` in the process that serves.

Words: an *engine* is the distribution whose kernels are packed, a *kernel* one ``@triton.jit`` function of it, a
*family* kernels that belong together with the code that drives their launches, a *model* what decides shapes, a
*deployment* a model as served, a *target* what is compiled for. A *compile key* is all that decides the compiled
bytes; a *cache key* names a directory of Triton's cache. An *artifact* is one file that a compile leaves, a
*bundle* the archive of them, its *manifest* the index, a *receipt* what an install wrote.
"""

from importlib import import_module

__version__ = "0.1.0"


def activate() -> None:
    """Make what is installed effective in this process, see ``aotpack.runtime``."""
    # By name, since nothing but a process that serves needs it.
    import_module("aotpack.runtime").activate()
