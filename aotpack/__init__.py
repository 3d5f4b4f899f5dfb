"""aotpack takes the just-in-time compile out of LLM serving.

On a build machine with no GPU it finds every compile key that an engine's Triton kernels can meet, compiles each
for each GPU architecture, and packs the result into one bundle; in a container it lays the kernels into Triton's
cache, so that neither start-up nor the first request compiles anything.

The road that data takes::

    engine + deployments --families, traced--> compile keys --compile--> artifacts --> bundle --install--> cache

Each module holds one noun, and imports go down this list only, which ``lint-imports`` holds:

- what people see: ``cli``, ``report``;
- what is asked of a machine or a bundle: ``coverage``, ``diff``, ``doctor``, ``misses``, ``verify``; and
  ``heal``, which acts on the last one's answer;
- what is done: ``tune`` on a machine with a GPU, ``build``, ``install``, ``sign``, ``wheel``, ``shipping`` (push and
  pull), and ``runtime`` in the process that serves; ``registry`` and ``layout`` are where images are kept, ``image`` is
  a bundle as one, ``packed`` a directory of bundles to serve from; ``admission`` says which bundles satisfy what is
  demanded of signatures, ``fitting`` which entries serve on a machine and under which keys, ``devices`` which
  product's results; ``pool`` runs the workers, ``cluster`` those of a Dask cluster, and ``kept`` asks them only for
  what ``compilecache`` has not, by the ``fingerprint`` of what it follows from;
- bundles and caches: ``store`` (a bundle unpacked, to be served in place), ``bundle``, ``artifacts`` (held against
  the manifest), ``helpers`` (Triton's C modules), ``leftovers`` (entries that Triton made), ``stamps`` (of
  installs that were done), ``tritoncache``, ``landing``, ``receipts``, ``listener``, ``record``;
- keys, on the worker's side: ``measuring``, ``compiler``, ``stages`` (of Triton's pipeline), ``tracing``,
  ``families``, ``engines``, ``deployments``, ``models``;
- what a bundle says: ``manifest``, ``archive``, ``sourcekeys``, ``sources``, ``autotuner`` (the file in which Triton's
  keeps what it measured), ``memorykeys``, ``toolchain``, ``results`` (as text), ``tuning``, ``keys``, ``targets``;
- who is trusted: ``policy`` (what a machine demands), ``signatures``, ``signingkeys``, ``writers`` (who may change what
  lies at a path);
- the ground: ``canonical`` (large documents), ``references`` and ``credentials`` of registries, ``documents``,
  ``atomic``, ``cachedirectory`` (Triton's), ``elf``, ``frames`` (of zstd), ``garbage``,
  ``gpus``, ``driver`` (CUDA's), ``interpreters``, ``limits`` (of a container), ``mounts``,
  ``selftest`` (of a wheel), ``digests``, ``findings``, ``errors``.

torch is imported in worker processes alone; Triton there, by what asks it for its keys (``toolchain``, ``sourcekeys``,
``autotuner``, ``helpers``), and in the process that serves (``listener``, ``runtime``), each time when called and never
before.

Words: an *engine* is the distribution whose kernels are packed, a *kernel* one ``@triton.jit`` function of it, a
*family* kernels that belong together with the code that drives their launches, a *model* what decides shapes, a
*deployment* a model as served, a *target* what is compiled for. A *compile key* is all that decides the compiled
bytes; a *cache key* names a directory of Triton's cache. An *artifact* is one file that a compile leaves, a
*bundle* the archive of them, its *manifest* the index, an *image* a bundle as registries keep it, a *receipt* what an
install wrote. A bundle's *signature* vouches for it (a compile key's is Triton's word for the types of arguments), and
a *policy* says what a machine demands of signatures.
A *tuning* is a decision of Triton's autotuner among *configurations*, a *result* what was measured for it on a
*device*, a *trial* a launch to be measured.
"""

from importlib import import_module

__version__ = "0.1.0"


def activate() -> None:
    """Make the bundles that this process can find effective in it, see ``aotpack.runtime``."""
    # By name, since nothing but a process that serves needs it.
    import_module("aotpack.runtime").activate()


def preload() -> None:
    """Make what is installed ready in this process before its first launches, see ``aotpack.runtime.preload``.

    For an engine that aotpack has no plug-in for: to be called after ``activate``, when the model is loaded.
    """
    import_module("aotpack.runtime.preload").preload()
