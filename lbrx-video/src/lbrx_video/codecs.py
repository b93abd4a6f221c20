"""The encoders that a writer can use: profiles, pixel formats and options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lbrx.extension.errors import LbrxError
from lbrx_video.ffmpeg import av
from lbrx_video.pixel_formats import FORMATS


@dataclass(frozen=True)
class Profile:
    """options: of the encoder. formats: without alpha, and with it if the profile has alpha."""

    options: Mapping[str, str]
    formats: tuple[str, ...]


@dataclass(frozen=True)
class Encoder:
    """One of FFmpeg's encoders."""

    name: str
    profiles: Mapping[str, Profile]
    default: str
    options: Mapping[str, str] = field(default_factory=dict)
    keeps_format: bool = False
    """Whether frames keep the pixel format of the clip that they are made like."""
    kernels: bool = False
    """Whether kernels make the packets; FFmpeg's encoder then only describes the stream."""
    limited: bool = False
    """Whether readers take the codes as limited to video levels, whatever a file says."""
    untagged: tuple[str, ...] = ()
    """Endings of files in which nothing says what the codes mean."""

    @property
    def is_available(self) -> bool:
        try:
            av.codec.Codec(self.name, "w")
        except ValueError:  # PyAV's error for an unknown codec
            return False
        return True

    def profile(self, name: str | None) -> tuple[str, Profile]:
        chosen = self.default if name is None else name
        if chosen not in self.profiles:
            known = ", ".join(self.profiles)
            raise LbrxError(f"{self.name} has no profile {name!r}: give one of {known}")
        return chosen, self.profiles[chosen]


def _prores(formats_422: tuple[str, ...], formats_444: tuple[str, ...]) -> dict[str, Profile]:
    names = ("proxy", "lt", "standard", "hq", "4444", "xq")
    return {
        name: Profile({"profile": str(i)}, formats_422 if i < 4 else formats_444)
        for i, name in enumerate(names)
    }


def _plain(formats: tuple[str, ...], *names: str) -> dict[str, Profile]:
    return {name: Profile({"profile": name}, formats) for name in names}


CODECS: dict[str, tuple[Encoder, ...]] = {
    # FFmpeg's encoder has 10 bits. Apple's has 12 and takes 16; lbrx's own has 12.
    "prores": (
        Encoder(
            "prores_ks",
            _prores(("yuv422p10le",), ("yuv444p10le", "yuva444p10le")),
            "hq",
            {"vendor": "apl0"},
            limited=True,
        ),
        Encoder(
            "prores_videotoolbox",
            _prores(("p210le",), ("p416le", "ayuv64le")),
            "hq",
            limited=True,
        ),
        Encoder(
            "prores_ks",
            _prores(("yuv422p10le",), ("yuv444p12le", "yuva444p12le")),
            "hq",
            kernels=True,
            limited=True,
        ),
    ),
    "h264": (
        Encoder(
            "libx264",
            {
                **_plain(("yuv420p",), "high", "main", "baseline"),
                **_plain(("yuv420p10le",), "high10"),
                **_plain(("yuv422p10le",), "high422"),
                **_plain(("yuv444p10le",), "high444"),
            },
            "high",
        ),
        Encoder("h264_videotoolbox", _plain(("nv12",), "high", "main", "baseline"), "high"),
    ),
    "hevc": (
        Encoder(
            "libx265",
            {
                **_plain(("yuv420p10le",), "main10"),
                **_plain(("yuv420p",), "main"),
                **_plain(("yuv422p10le",), "main422-10"),
                **_plain(("yuv444p10le",), "main444-10"),
            },
            "main10",
            {"x265-params": "log-level=error"},
        ),
        Encoder(
            "hevc_videotoolbox",
            {**_plain(("p010le",), "main10"), **_plain(("nv12",), "main")},
            "main10",
        ),
    ),
    "ffv1": (
        Encoder(
            "ffv1",
            {"lossless": Profile({}, ("yuv444p16le", "yuva444p16le"))},
            "lossless",
            {"level": "3", "slicecrc": "1"},
            keeps_format=True,
            untagged=(".avi", ".nut"),
        ),
    ),
}
SOFTWARE, HARDWARE, KERNELS = 0, 1, 2  # places in a row of CODECS
ENCODERS = ("auto", "software", "hardware", "kernels")
PRORES_CODES = ("apco", "apcs", "apcn", "apch", "ap4h", "ap4x")  # by FFmpeg's number of the profile
TWELVE_BITS = ("4444", "xq")  # profiles that only Apple's encoder writes in full


def default_codec(ending: str) -> str:
    """The codec of a file if none is asked for."""
    return "h264" if ending.lower() in (".mp4", ".m4v") else "prores"


def holds_alpha(codec: str, profile: str | None, encoder: str) -> bool:
    """Whether a profile can have an alpha plane."""
    return len(find_encoder(codec, profile, encoder).profile(profile)[1].formats) > 1


def find_encoder(codec: str, profile: str | None, encoder: str) -> Encoder:
    """The encoder of a codec. "auto" prefers Apple's where FFmpeg's own has fewer bits."""
    if codec not in CODECS:
        raise LbrxError(f"codec={codec!r}: give one of {', '.join(CODECS)}")
    if encoder not in ENCODERS:
        raise LbrxError(f"encoder={encoder!r}: give one of {', '.join(ENCODERS)}")
    rows = CODECS[codec]
    if encoder == "kernels":
        if len(rows) <= KERNELS:
            raise LbrxError(f"kernels encode ProRes, not {codec}: give encoder='auto'")
        return rows[KERNELS]
    hardware = rows[HARDWARE] if len(rows) > 1 else None
    if encoder == "hardware" and (hardware is None or not hardware.is_available):
        raise LbrxError(f"there is no hardware encoder for {codec} here: give encoder='software'")
    wanted = encoder == "hardware" or (codec == "prores" and profile in TWELVE_BITS)
    if encoder != "software" and wanted and hardware is not None and hardware.is_available:
        return hardware
    if not rows[SOFTWARE].is_available:
        raise LbrxError(f"this PyAV has no encoder {rows[SOFTWARE].name}: install one that has")
    return rows[SOFTWARE]


def pixel_format(encoder: Encoder, profile: Profile, alpha: bool, like: str | None) -> str:
    """The pixel format of encoded frames."""
    if encoder.keeps_format and like in FORMATS:
        known = av.codec.Codec(encoder.name, "w").video_formats or ()
        if like in {form.name for form in known} and FORMATS[like].alpha >= alpha:
            return str(like)
    if alpha and len(profile.formats) == 1:
        raise LbrxError(
            f"{encoder.name} has no alpha in this profile: give alpha=False, or ProRes 4444"
        )
    return profile.formats[-1 if alpha else 0]
