"""What must not be written down: keys and passwords, by the shapes in which they turn up in texts, or because we were told.

Error texts quote requests, and requests carry keys. Everything that recognises a secret by its look lives here.
A text is only ever changed where a secret was; it says `***` there.
"""

import re
from typing import Final

_KEYS = (
    r"sk-[\w*-]{8,}",  # OpenAI, Anthropic and those who speak like them; some arrive half hidden by asterisks
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
_NAMES = (
    r"(?<![\w-])(?:[\w-]*[_-])?"
    r"(?:api[_-]?key|(?:access|auth|refresh|id|session|security)[_-]?token|(?:client[_-]?)?secret(?:[_-]access)?(?:[_-]?key)?"
    r"|private[_-]?key|passw(?:or)?d|passphrase)"
)
_HEADERS = r"(?:proxy-)?authorization|[\w-]*(?:api-key|auth-token|subscription-key|functions-key)"
_IN_URLS = r"key|token|sig|signature|pwd|auth|x-amz-(?:signature|credential|security-token)|x-goog-signature"

_QUOTE = r"""\\?["']"""
_INSIDE = r"""[^"'\\\r\n]+"""  # a value in quotes ends with them
_BARE = r"""[^\s"'\\,;&)}\]>]+"""  # one without ends where a sentence, a list or a URL would go on
_SCHEMES = r"(?:bearer|basic|token)\s+"
_LONG = r"(?:digest|aws4-hmac-sha256)\s[^\r\n]*"  # schemes with many parts

_SHAPES = (
    (
        re.compile(r"(-----BEGIN [A-Z ]*PRIVATE KEY-----).*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
        r"\1 ***",
    ),
    # A header as a line, as a member of a dict, or as one of a pair: its whole value goes, scheme and all.
    (
        re.compile(
            rf"(?i)((?<![\w-])(?:{_HEADERS})(?:{_QUOTE}\s*[:,]|\s*[:=])\s*)"
            rf"(b?{_QUOTE})?(?(2){_INSIDE}|(?:{_LONG}|(?:{_SCHEMES})?{_BARE}))"
        ),
        r"\1\2***",
    ),
    (re.compile(rf"(?i)(\bcookie(?:{_QUOTE}\s*[:,]|\s*[:=])\s*)(b?{_QUOTE})?[^\"'\r\n]+"), r"\1\2***"),
    # With a digit somewhere: "basic understanding" is no secret.
    (re.compile(r"(?i)\b(bearer|basic)(\s+)(?=[a-z._~+/-]{0,200}[0-9*])[a-z0-9._~+/*-]{8,}=*"), r"\1\2***"),
    (
        re.compile(rf"(?i)({_NAMES}(?:{_QUOTE})?\s*[:=]\s*)(b?{_QUOTE})?(?(2){_INSIDE}|{_BARE})"),
        r"\1\2***",
    ),
    (re.compile(rf"(?i)([?&](?:{_IN_URLS})=)[^\s&#\"'<>]+"), r"\1***"),
    (re.compile(r"(?i)(\b[a-z][a-z0-9+.-]{1,20}://)[^\s/@:\"']{0,200}:[^\s/@\"']{1,500}@"), r"\1***@"),
    (re.compile(rf"(?<![A-Za-z0-9])(?:{'|'.join(_KEYS)})"), "***"),
)

_SECRET_NAME = re.compile(r"(?i)key|token|secret|auth|cookie|passw|pwd|credential|signature|\bsig\b")

SHORTEST: Final = 8
"""Characters; what is shorter turns up in texts by chance, and is not much of a secret."""

_told: set[str] = set()
"""Values that are secret whatever they look like: this process sends them to somebody. They only ever become more."""


def is_secret_name(name: str) -> bool:
    """Whether the name of a header, a parameter or a variable says that its value is secret."""
    return _SECRET_NAME.search(name) is not None


def add_secret(value: str) -> None:
    """Mask a value from now on, in every text."""
    if len(value) >= SHORTEST:
        _told.add(value)


def mask(text: str) -> str:
    """Put `***` where a text shows a value that is kept secret, or something that looks like a key, a password or a token."""
    for value in sorted(_told, key=len, reverse=True):
        text = text.replace(value, "***")
    for shape, replacement in _SHAPES:
        text = shape.sub(replacement, text)
    return text
