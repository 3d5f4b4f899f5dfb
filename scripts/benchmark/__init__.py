"""The benchmark: how fast, small and frugal aotpack is, each against a rival that is measured in the same run.

Sections, in the order in which they run: ``build`` (a plain loop of ``triton.compile`` is the rival), ``sizes``
(archives of Triton's own cache directory), ``install`` (tar, Triton's own ``put``, cp) and ``load`` (hits in Triton's
own cache directory, and compiles). Each gives figures, which say what was asked of them and whether it is met. What
is measured runs in processes of its own, and what is compared takes turns, so that a slow minute of the machine hits
both sides alike.

``figures`` is what comes out, ``spending`` how a process is measured, ``workplace`` what the sections share: the
bundle, the engine, a directory. ``compiling``, ``commanding``, ``putting``, ``activating``, ``preloading`` and
``hitting`` are the processes.
"""
