"""aotpack takes the just-in-time compile out of LLM serving.

On a build machine with no GPU it finds every compile key that an engine's Triton kernels can meet, compiles each
for each GPU architecture, and packs the result into one bundle; in a container it lays the kernels into Triton's
cache, so that neither start-up nor the first request compiles anything.

The road that data takes::

    engine + deployments --families, traced--> compile keys --compile--> artifacts --> bundle --install--> cache

Each module holds one noun, and imports go down this list only: ``cli``, ``report``, ``coverage``, ``build``
and ``install``, ``pool``, ``bundle``, ``tritoncache``, ``record``, ``compiler``, ``tracing``, ``families``,
``engines``, ``deployments``, ``models``, ``manifest``, ``archive``, ``toolchain``, ``keys``, ``targets``,
``documents`` and ``atomic``, ``digests``, ``findings``, ``errors``. torch is imported in worker processes alone;
Triton there, and by ``toolchain`` when asked.

Words: an *engine* is the distribution whose kernels are packed, a *kernel* one ``@triton.jit`` function of it, a
*family* kernels that belong together with the code that drives their launches, a *model* what decides shapes, a
*deployment* a model as served, a *target* what is compiled for. A *compile key* is all that decides the compiled
bytes; a *cache key* names a directory of Triton's cache. An *artifact* is one file that a compile leaves, a
*bundle* the archive of them, its *manifest* the index, a *receipt* what an install wrote.
"""

__version__ = "0.1.0"
