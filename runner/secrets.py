"""Masking of secrets: keys and passwords that are recognized by their form, or that were added.

Error messages quote requests, and requests contain keys. A secret is replaced by `***`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

_KEYS = (
    r"sk-[\w*-]{8,}",  # OpenAI, Anthropic and compatible APIs, some partly masked by asterisks
    r"(?:sk|pk|rk)_(?:live|test)_\w{8,}",  # Stripe
    r"(?:gsk|hf|r8|glpat|npm|dop_v1)[_-]\w{16,}",  # Groq, Hugging Face, Replicate, GitLab, npm, DigitalOcean
    r"(?:nvapi|xai|pplx|fw|lsv2_pt|lsv2_sk|pk-lf)[_-][\w-]{16,}",  # NVIDIA, xAI, Perplexity, Fireworks, tracers
    r"gh[oprsu]_\w{16,}",  # GitHub
    r"github_pat_\w{16,}",
    r"xox[abeoprs]-[\w-]{8,}",  # Slack
    r"AIza[\w-]{30,}",  # Google
    r"ya29\.[\w.-]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
    r"eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*",  # a JSON web token
)
_KEY_PREFIXES = (
    *("sk-", "sk_", "pk_", "rk_", "gsk", "hf_", "hf-", "r8", "glpat", "npm", "dop_v1", "nvapi", "xai", "pplx", "fw", "lsv2_"),
    *("pk-lf", "gho_", "ghp_", "ghr_", "ghs_", "ghu_", "github_pat_", "xox", "aiza", "ya29.", "akia", "asia", "eyj"),
)
_NAMES = (
    r"(?<![\w-])(?:[\w-]*[_-])?"
    r"(?:api[_-]?key|(?:access|auth|refresh|id|session|security)[_-]?token|(?:client[_-]?)?secret(?:[_-]access)?(?:[_-]?key)?"
    r"|private[_-]?key|passw(?:or)?d|passphrase)"
)
_HEADERS = r"(?:proxy-)?authorization|[\w-]*(?:api-key|auth-token|subscription-key|functions-key)"
_IN_URLS = r"key|token|sig|signature|pwd|auth|x-amz-(?:signature|credential|security-token)|x-goog-signature"

_QUOTE = r"""\\?["']"""
_INSIDE = r"""[^"'\\\r\n]+"""  # up to the closing quote
_BARE = r"""[^\s"'\\,;&)}\]>]+"""  # up to the end of the word, list item or URL parameter
_SCHEMES = r"(?:bearer|basic|token)\s+"
_LONG = r"(?:digest|aws4-hmac-sha256)\s[^\r\n]*"  # schemes with several parts

_SHAPES = (
    (
        ("private key-----",),
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        r"\1 ***",
    ),
    # A header as a line, a dict member or a pair: its whole value is masked, with the scheme.
    (
        ("authorization", "api-key", "auth-token", "subscription-key", "functions-key"),
        re.compile(
            rf"(?i)((?<![\w-])(?:{_HEADERS})(?:{_QUOTE}\s*[:,]|\s*[:=])\s*)"
            rf"(b?{_QUOTE})?(?(2){_INSIDE}|(?:{_LONG}|(?:{_SCHEMES})?{_BARE}))"
        ),
        r"\1\2***",
    ),
    (("cookie",), re.compile(rf"(?i)(\bcookie(?:{_QUOTE}\s*[:,]|\s*[:=])\s*)(b?{_QUOTE})?[^\"'\r\n]+"), r"\1\2***"),
    # Requires a digit: "basic understanding" is not a secret.
    (
        ("bearer", "basic"),
        re.compile(r"(?i)\b(bearer|basic)(\s+)(?=[a-z._~+/-]{0,200}[0-9*])[a-z0-9._~+/*-]{8,}=*"),
        r"\1\2***",
    ),
    (
        ("key", "token", "secret", "passw", "passphrase"),
        re.compile(rf"(?i)({_NAMES}(?:{_QUOTE})?\s*[:=]\s*)(b?{_QUOTE})?(?(2){_INSIDE}|{_BARE})"),
        r"\1\2***",
    ),
    (("?", "&"), re.compile(rf"(?i)([?&](?:{_IN_URLS})=)[^\s&#\"'<>]+"), r"\1***"),
    (("://",), re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:\"']{0,200}:[^\s/@\"']{1,500}@"), r"\1***@"),
    (_KEY_PREFIXES, re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_KEYS)})"), "***"),
)
"""Case-folded markers, pattern, replacement. Each match contains a marker; most texts have none and need no search."""

_SECRET_NAME = re.compile(r"(?i)key|token|secret|auth|cookie|passw|pwd|credential|signature|\bsig\b")

_SECRET_MEMBER = re.compile(rf"(?i){_NAMES}|{_HEADERS}")

SHORTEST: Final = 8
"""Characters; shorter values occur in texts by chance."""

_added: set[str] = set()
"""Secrets of any form that this process sends."""


def is_secret_name(name: str) -> bool:
    """Whether the name of a header, a parameter or a variable suggests a secret value."""
    return _SECRET_NAME.search(name) is not None


def add_secret(value: str) -> None:
    """Mask a value in all texts from now on."""
    if len(value) >= SHORTEST:
        _added.add(value)


def mask_values(value: Any) -> Any:
    """Return a JSON value with the secrets in its texts masked, and those that the name of a member suggests."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        members = cast("Mapping[str, Any]", value).items()
        return {key: "***" if _is_secret_member(key, item) else mask_values(item) for key, item in members}
    return [mask_values(item) for item in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def _is_secret_member(name: str, value: object) -> bool:
    return isinstance(value, str) and "$" not in value and _SECRET_MEMBER.fullmatch(name) is not None


def mask(text: str) -> str:
    """Replace added secrets, and anything that looks like a key, a password or a token, by `***`."""
    for value in sorted(_added, key=len, reverse=True):
        text = text.replace(value, "***")
    folded = text.casefold()
    for markers, shape, replacement in _SHAPES:
        if any(marker in folded for marker in markers):
            text = shape.sub(replacement, text)
    return text
