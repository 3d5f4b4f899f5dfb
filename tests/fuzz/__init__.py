"""Fuzzing: what reads bytes from outside, mutators that get past what refuses first, and a corpus.

``targets`` says what is read and what must hold, ``mutators`` changes what was read before, ``watch`` sees what is
written where, and ``make_corpus`` made ``corpus``. The suite replays the corpus and tries a few thousand changes of it
(``tests/test_fuzz.py``); ``scripts/fuzz.py`` goes on for as long as it is told, guided by coverage.
"""
