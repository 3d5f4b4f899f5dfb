"""Mutators: they change what is well formed so that it stays well formed where a reader would refuse it at once.

Bytes changed blindly hardly ever get past zstd, a digest, or the one canonical spelling of a manifest. So an archive is
taken apart, changed inside and put together again, and a document is changed as a value and spelled anew. Everything
is drawn from one ``Random``, so that a seed tells all.
"""

import copy
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import zstandard

Mutator = Callable[[bytes, Random], bytes]

_BLOCK = tarfile.BLOCKSIZE
_MOST = 4 << 20
"""Bytes of an archive that are taken apart."""

ODD_TEXTS = (
    "",
    "..",
    "../../escape",
    "/etc/escape",
    "a/b",
    "a\\b",
    "a\0b",
    "a\nb",
    "\x1b[2Jb",
    "\ud800",
    "\u202eb",
    ".hidden",
    "A" * 300,
    "constexpr",
    "cuda:90",
    "cuda:100",
    "sha256:" + "0" * 64,
    "sha256:" + "A" * 64,
    "__triton_launcher",
    "module:kernel",
    "1.5",
    "nan",
)
ODD_NUMBERS = (0, 1, -1, 2, 16, 255, 2**31, 2**32, 2**53, 2**53 + 1, 2**63, 2**64, 10**400, 0.5, 1e308, -0.0)
_ODD_VALUES: tuple[Any, ...] = (None, True, False, [], {}, [[]], {"": None}, *ODD_NUMBERS, *ODD_TEXTS)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Bytes with a few changed, left out, put in, or repeated."""
    result = bytearray(data)
    for _ in range(random.randint(1, 4)):
        start = random.randint(0, len(result))
        length = min(random.choice((1, 1, 2, 4, 16, 64, 512)), len(result) - start)
        match random.randrange(5):
            case 0 if length:
                result[start] ^= 1 << random.randrange(8)
            case 1:
                del result[start : start + length]
            case 2:
                result[start:start] = random.randbytes(random.choice((1, 2, 8, 64)))
            case 3:
                result[start:start] = result[start : start + length] * random.choice((1, 2, 8))
            case _:
                result[start : start + length] = bytes([random.choice((0, 0x20, 0x7F, 0xFF))]) * length
    return bytes(result)


# Documents


def mutate_document(data: bytes, random: Random) -> bytes:
    """A JSON document with some values changed, in canonical spelling as a rule."""
    document = _parsed(data)
    if document is None or random.random() < 0.1:
        return mutate_bytes(data, random)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        document = mutate_value(document, random)
    return _spelled(document, random, format_first=data.startswith(b'{"format":'))


def mutate_lines(data: bytes, random: Random) -> bytes:
    """Lines, each a document: one of them changed, left out, or repeated."""
    lines = data.splitlines(keepends=True) or [b""]
    place = random.randrange(len(lines))
    match random.randrange(8):
        case 0:
            del lines[place]
        case 1:
            lines.insert(random.randrange(len(lines) + 1), lines[place])
        case _:
            lines[place] = mutate_document(lines[place], random)
    return b"".join(lines)


def mutate_value(document: Any, random: Random) -> Any:
    """A JSON value with something in it changed: put in, left out, repeated, moved, or another value."""
    document = copy.deepcopy(document)
    places = list(_places(document))
    if not places:
        return random.choice(_ODD_VALUES)
    holder, name = random.choice(places)
    match random.randrange(6):
        case 0:
            del holder[name]
        case 1:
            holder[name] = copy.deepcopy(random.choice(_ODD_VALUES))
        case 2:
            other, other_name = random.choice(places)
            holder[name] = copy.deepcopy(other[other_name])
        case 3 if isinstance(holder, list):
            holder.insert(random.randrange(len(holder) + 1), copy.deepcopy(holder[name]))
        case 3:
            holder[random.choice(ODD_TEXTS)] = copy.deepcopy(holder[name])
        case 4 if isinstance(holder[name], list):
            random.shuffle(holder[name])
        case _:
            holder[name] = _near(holder[name], random)
    return document


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every object or array with each of its names or indices."""
    found: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        holder = waiting.pop()
        pairs = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
        for name, inner in pairs:
            found.append((holder, name))
            waiting.append(inner)
    return found


def _near(value: Any, random: Random) -> Any:
    """Another value of the same kind."""
    match value:
        case bool():
            return not value
        case int():
            return random.choice((value + 1, value - 1, -value, value * 2, value << 16))
        case float():
            return random.choice((value + 1, -value, value * 1e300))
        case str():
            start = random.randint(0, len(value))
            return value[:start] + random.choice(ODD_TEXTS) + value[random.randint(start, len(value)) :]
        case _:
            return copy.deepcopy(random.choice(_ODD_VALUES))


def _parsed(data: bytes) -> Any:
    """The value, or None where there is none, or one that a mutator cannot walk."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _spelled(document: Any, random: Random, *, format_first: bool) -> bytes:
    """The canonical spelling, as a rule; what Python's own writer would rather refuse is spelled all the same.

    Args:
        document: the value.
        random: decides.
        format_first: spell it as a manifest is, which says its format before all else.
    """
    if random.random() < 0.05:
        return json.dumps(document, indent=1).encode()
    if format_first and isinstance(document, dict) and "format" in document:
        rest = {name: value for name, value in document.items() if name != "format"}
        spelled = (json.dumps(one, sort_keys=True, separators=(",", ":")) for one in (document["format"], rest))
        return f'{{"format":{next(spelled)},{next(spelled)[1:]}\n'.encode()
    return (json.dumps(document, sort_keys=True, separators=(",", ":")) + "\n").encode()


# Archives


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an archive: its header as it stands there, and its content without the padding."""

    header: bytes
    content: bytes

    def spell(self) -> bytes:
        """The member in the tar."""
        return self.header + self.content + bytes(-len(self.content) % _BLOCK)


def member(name: str, content: bytes) -> Member:
    """A member as aotpack writes it."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o644
    return Member(info.tobuf(tarfile.USTAR_FORMAT), content)


def blob(content: bytes) -> Member:
    """A blob under its own digest."""
    return member(f"blobs/sha256/{hashlib.sha256(content).hexdigest()}", content)


def take_apart(data: bytes) -> tuple[list[Member], bytes]:
    """The members of an archive, as far as there are any, and the rest of its tar.

    Raises:
        zstandard.ZstdError: this is no zstd, or its window is larger than need be.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 20)
    with decompressor.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
        tar = reader.read(_MOST)
    members, place = [], 0
    while any(header := tar[place : place + _BLOCK]) and len(header) == _BLOCK:
        digits = header[124:135]
        size = int(digits, 8) if digits.isdigit() and not set(digits) & set(b"89") else 0
        content = tar[place + _BLOCK : place + _BLOCK + size]
        members.append(Member(header, content))
        place += _BLOCK + len(content) + -len(content) % _BLOCK
    return members, tar[place:]


def put_together(frames: list[bytes]) -> bytes:
    """An archive of frames."""
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    return b"".join(compressor.compress(frame) for frame in frames)


def archive(members: list[Member], rest: bytes = bytes(2 * _BLOCK)) -> bytes:
    """An archive in the shape in which aotpack writes them: the manifest's frame, the blobs', and the end's."""
    blobs = b"".join(member.spell() for member in members[1:])
    return put_together([frame for frame in (*(one.spell() for one in members[:1]), blobs, rest) if frame])


def mutate_archive(data: bytes, random: Random) -> bytes:
    """An archive with its manifest, a header, a blob, the order of things or its frames changed."""
    try:
        members, rest = take_apart(data)
    except zstandard.ZstdError:
        members, rest = [], b""
    if not members or random.random() < 0.1:
        return mutate_bytes(data, random)
    match random.randrange(8):
        case 0 | 1:
            members[0] = member("manifest.json", mutate_document(members[0].content, random))
        case 2:
            place = random.randrange(len(members))
            members[place] = Member(_other_header(members[place].header, random), members[place].content)
        case 3 if len(members) > 1:
            members = _with_other_blob(members, random)
        case 4:
            members.insert(random.randrange(len(members) + 1), random.choice(members))
        case 5:
            random.shuffle(members) if random.random() < 0.5 else members.pop(random.randrange(len(members)))
        case 6:
            rest = random.choice(
                (b"", rest + rest, rest[:_BLOCK], mutate_bytes(rest, random), rest + members[0].spell())
            )
        case _:
            return _framed_otherwise(members, rest, random)
    return archive(members, rest)


def _other_header(header: bytes, random: Random) -> bytes:
    """A header with one field another, under the right checksum as a rule."""
    try:
        info = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return mutate_bytes(header, random)[:_BLOCK].ljust(_BLOCK, b"\0")
    if random.random() < 0.2:
        changed = bytearray(header)
        changed[random.randrange(_BLOCK)] ^= 1 << random.randrange(8)
        return bytes(changed)
    match random.randrange(5):
        case 0:
            info.name = random.choice((info.name.upper(), f"./{info.name}", f"{info.name}/..", *ODD_TEXTS))[:100]
        case 1:
            info.size = random.choice((0, info.size + 1, max(info.size - 1, 0), 1 << 20, 1 << 32))
        case 2:
            info.type = random.choice((b"1", b"2", b"3", b"4", b"5", b"6", b"7", b"S", b"L", b"x", b"g", b"\0"))
            info.linkname = random.choice(("", "/etc/passwd", "manifest.json"))
        case 3:
            info.mode = random.choice((0o755, 0o4755, 0))
        case _:
            info.uid = info.mtime = random.choice((1, 1000, 2**31))
    try:
        return info.tobuf(random.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT)), errors="surrogatepass")[:_BLOCK]
    except ValueError:
        return header


def _with_other_blob(members: list[Member], random: Random) -> list[Member]:
    """An archive with another content of one blob, and half the time with a manifest that lists just that."""
    place = random.randrange(1, len(members))
    old = members[place].content
    new = mutate_document(old, random) if _parsed(old) is not None else mutate_bytes(old, random)
    if random.random() < 0.5:
        return [
            *members[:place],
            Member(members[place].header, new[: len(old)].ljust(len(old), b"\0")),
            *members[place + 1 :],
        ]
    manifest = members[0].content.replace(_listed(old), _listed(new))
    return [member("manifest.json", manifest), *members[1:place], blob(new), *members[place + 1 :]]


def _listed(content: bytes) -> bytes:
    """A blob as a manifest spells it."""
    return f'"sha256:{hashlib.sha256(content).hexdigest()}","size":{len(content)}'.encode()


def _framed_otherwise(members: list[Member], rest: bytes, random: Random) -> bytes:
    """The same tar in other frames: one, many, empty ones, such as are to be skipped, with more after them."""
    tar = b"".join(one.spell() for one in members) + rest
    plain = put_together([tar])
    cut = random.randint(0, len(tar))
    wide = zstandard.ZstdCompressionParameters(window_log=random.choice((10, 20, 24, 27, 30)), write_content_size=0)
    return random.choice(
        (
            lambda: plain,
            lambda: put_together([tar[:cut], tar[cut:]]),
            lambda: put_together([tar[:cut], b"", tar[cut:], b""]),
            lambda: b"\x50\x2a\x4d\x18\x04\0\0\0skip" + plain,
            lambda: plain + b"\x5f\x2a\x4d\x18\x00\0\0\0",
            lambda: zstandard.ZstdCompressor(compression_params=wide).compress(tar),
            lambda: plain + plain,
            lambda: plain + random.randbytes(random.randint(1, 16)),
            lambda: plain[: random.randint(0, len(plain))],
        )
    )()
