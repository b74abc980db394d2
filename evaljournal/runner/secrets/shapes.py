"""Secrets that are recognized by their form: known key formats, and values next to a name such as `api_key`.

Every pattern takes time linear in the length of the text, because replies and datasets are untrusted: no two failing matches
scan the same characters.
"""

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs

MASK: Final = "***"
"""The replacement for a secret; the same for every secret, so that fingerprints do not depend on one."""

_KEYS = (
    r"sk-[\w*-]{8,}",  # OpenAI, Anthropic and compatible APIs, some partly masked by asterisks
    r"(?:sk|pk|rk)_(?:live|test)_\w{8,}",  # Stripe
    r"(?:gsk|hf|r8|glpat|npm|dop_v1)[_-]\w{16,}",  # Groq, Hugging Face, Replicate, GitLab, npm, DigitalOcean
    r"(?:nvapi|xai|pplx|fw|lsv2_pt|lsv2_sk|pk-lf)[_-][\w-]{16,}",  # NVIDIA, xAI, Perplexity, Fireworks, LangSmith, Langfuse
    r"gh[oprsu]_\w{16,}",  # GitHub
    r"github_pat_\w{16,}",
    r"xox[abeoprs]-[\w-]{8,}",  # Slack
    r"AIza[\w-]{30,}",  # Google
    r"ya29\.[\w.-]{16,}",
    r"(?:AKIA|ASIA)[0-9A-Z]{16}",  # AWS
)
_KEY_MARKERS = (
    *("sk-", "sk_live_", "sk_test_", "pk_live_", "pk_test_", "rk_live_", "rk_test_", "lsv2_", "pk-lf", "github_pat_", "xox"),
    *(f"gh{letter}_" for letter in "oprsu"),
    *(f"{name}{mark}" for name in ("gsk", "hf", "r8", "glpat", "npm", "dop_v1", "nvapi", "xai", "pplx", "fw") for mark in "_-"),
    *("aiza", "ya29.", "akia", "asia"),
)
_TOKEN_KINDS = ("access", "auth", "refresh", "id", "session", "security")
_NAMES = (
    r"(?<![^\W_])"
    rf"(?:api[_-]?key|(?:{'|'.join(_TOKEN_KINDS)})[_-]?token|(?:client[_-]?)?secret(?:[_-]access)?(?:[_-]?key)?"
    r"|private[_-]?key|passw(?:or)?d|passphrase)"
)
_NAME_MARKERS = (
    *(f"{name}{mark}key" for name in ("api", "private") for mark in ("", "_", "-")),
    *(f"{name}{mark}token" for name in _TOKEN_KINDS for mark in ("", "_", "-")),
    *("secret", "passw", "passphrase"),
)
_HEADERS = r"(?:(?<![\w-])(?:proxy-)?authorization|api-key|auth-token|subscription-key|functions-key)"
_URL_PARAMETERS = r"key|token|sig|signature|pwd|auth|x-amz-(?:signature|credential|security-token)|x-goog-signature"
_FLAGS = r"(?:api-?key|token|secret|passw(?:or)?d|passphrase|credentials?|oauth2-bearer|(?<=--)pass)"
_LOGIN_FLAGS = r"--(?:(?:proxy|http|ftp)-)?user"
_NUMBER = r"\d{1,6}"  # a token count, a user id or a port, not a secret

_QUOTE = r"""\\?["']"""
_TEXT = r"""[^"'\\\r\n]+"""  # up to the closing quote
_WORD = r"""(?![{$<\[])[^\s"'\\,;&)}\]>]+"""  # up to the end of the word, list item or URL parameter; not a placeholder
_SCHEMES = r"(?:bearer|basic|token)\s+"
_LONG_CREDENTIALS = r"(?:digest|aws4-hmac-sha256)\s[^\r\n]*"  # schemes with several parts


def _group_markers(markers: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Group markers by a substring that few texts contain, so that most markers need no search of their own.

    A marker that contains another one is omitted: a text that contains it contains the other one.
    """
    unique_markers = dict.fromkeys(markers)
    groups: dict[str, tuple[str, ...]] = {}
    for marker in unique_markers:
        if not any(other_marker in marker for other_marker in unique_markers if other_marker != marker):
            guard = next((guard for guard in ("key", "token", *"@=_-") if guard in marker), "")
            groups[guard] = (*groups.get(guard, ()), marker)
    return groups


def _has_marker(folded_text: str, marker_groups: Mapping[str, tuple[str, ...]]) -> bool:
    for guard, markers in marker_groups.items():
        if guard in folded_text:
            for marker in markers:  # A generator expression would be slower.
                if marker in folded_text:
                    return True
    return False


_compiled: Final = functools.cache(re.compile)


@attrs.frozen
class _Shape:
    markers: tuple[str, ...]
    """Lower-case texts, one of which each match contains. Most texts contain none and need no search."""
    pattern: str
    """A regular expression, compiled when a text first has a marker. Its groups, if any, are kept."""
    is_certain: bool = False
    """Whether a match is a key by its own form, not by the name next to it."""
    marker_groups: Mapping[str, tuple[str, ...]] = attrs.field(
        init=False, repr=False, default=attrs.Factory(lambda self: _group_markers(self.markers), takes_self=True)
    )

    def mask(self, text: str, is_secret: Callable[[str], bool] | None) -> str:
        """Replace the part of each match after its groups, if `is_secret` is true of it."""

        def replacement(match: re.Match[str]) -> str:
            visible_part = "".join(group for group in match.groups() if group)
            if match.lastgroup == "unfinished" or (is_secret is not None and not is_secret(match[0][len(visible_part) :])):
                return match[0]
            return f"{visible_part}{MASK}"

        return _compiled(self.pattern).sub(replacement, text)


_SHAPES: Final = (
    _Shape(
        ("private key-----",),
        r"(?s)(-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----).*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
        is_certain=True,
    ),
    # A header as a line, a dict field or a pair: its whole value is masked, except the scheme.
    _Shape(
        ("authorization", "api-key", "auth-token", "subscription-key", "functions-key"),
        (
            rf"(?i)({_HEADERS}(?:{_QUOTE}\s*[:,]|\s*[:=])\s*)(b?{_QUOTE})?({_SCHEMES})?"
            rf"(?(2){_TEXT}|(?:{_LONG_CREDENTIALS}|(?!{_SCHEMES}){_WORD}))"
        ),
    ),
    _Shape(("cookie",), rf"(?i)(\bcookie(?:{_QUOTE}\s*[:,]|\s*[:=])\s*)(b?{_QUOTE})?[^\"'\r\n]+"),
    # Requires a digit: "basic understanding" is not a secret. Begins with a letter, which is faster to find than a boundary.
    _Shape(
        ("bearer", "basic"),
        r"([bB](?<!\w.)(?i:earer|asic)\s+)(?i:(?!\*\*\*)(?=[a-z._~+/-]{0,200}[0-9*])[a-z0-9._~+/*-]{8,})=*",
        is_certain=True,
    ),
    _Shape(_NAME_MARKERS, rf"(?i)({_NAMES}(?:{_QUOTE})?\s*[:=]\s*)(b?{_QUOTE})?(?(2){_TEXT}|{_WORD})"),
    _Shape(
        tuple(f"-{name}" for name in ("api-key", "apikey", "token", "secret", "pass", "credential", "oauth2-bearer")),
        (
            rf"(?i)((?<![\w-])--?(?:[a-z0-9]{{1,20}}-){{0,4}}{_FLAGS}(?:[ \t]{{1,8}}|=))({_QUOTE})?"
            rf"(?!-|{_NUMBER}(?![^\s\"']))(?(2){_TEXT}|{_WORD})"
        ),
    ),
    # A login of curl: -u name:password. A URL, a port and a group id are not passwords.
    _Shape(
        ("-u", "-user"),
        (
            rf"((?<![\w-])(?:-[uU][ \t]{{0,8}}|(?i:{_LOGIN_FLAGS})(?:[ \t]{{1,8}}|=)))({_QUOTE})?"
            rf"([^\s\"'\\:]{{0,100}}:)({_QUOTE})?(?!//|(?i:https?:)|{_NUMBER}(?![^\s\"']))(?(2){_TEXT}|(?(4){_TEXT}|{_WORD}))"
        ),
    ),
    # An environment variable: PGPASSWORD=…
    _Shape(
        tuple(f"{name}=" for name in ("key", "token", "secret", "password", "passwd")),
        (
            r"((?<![A-Za-z0-9_])(?:(?:[A-Z0-9_]{0,60}_)?(?:API)?(?:KEY|TOKEN|SECRET)|[A-Z0-9_]{0,60}PASSW(?:OR)?D)=)"
            rf"({_QUOTE})?"
            rf"(?!{_NUMBER}(?![^\s\"']))(?(2){_TEXT}|{_WORD})"
        ),
    ),
    _Shape(
        tuple(f"{name}=" for name in ("key", "token", "sig", "signature", "pwd", "auth", "credential", "code")),
        rf"(?i)([?&](?:(?:{_URL_PARAMETERS})=|code=(?=[^\s&#\"'<>]{{12}})))(?![{{$])[^\s&#\"'<>]+",
    ),
    _Shape(
        ("@",),
        r"(?i)(\b[a-z][a-z0-9+.-]{1,20}://)(?:[^\s/@:\"']{0,200}:[^\s/@\"']{1,500}|(?!\$)[^\s/@:\"']{12,500})(?=@)",
        is_certain=True,
    ),
    _Shape(_KEY_MARKERS, rf"(?<![A-Za-z0-9])(?:{'|'.join(_KEYS)})", is_certain=True),
    # A JSON web token. An incomplete one is consumed unchanged, so that its characters are not scanned again.
    _Shape(
        ("eyj",),
        r"(?<![A-Za-z0-9])eyJ[\w-]{8,}+(?:\.[\w-]{8,}+\.[\w-]*+|(?P<unfinished>))",
        is_certain=True,
    ),
)

_MARKERS: Final = _group_markers(marker for shape in _SHAPES for marker in shape.markers)

_SECRET_NAME = re.compile(r"(?i)key|token|secret|auth|cookie|passw|pwd|credential|signature|\bsig\b")
_SECRET_FIELD = re.compile(rf"(?i)(?:[\w-]*[_-])?{_NAMES}|[\w-]*{_HEADERS}")
_SECRET_FLAG = re.compile(rf"(?i)--?(?:[a-z0-9]{{1,20}}-){{0,4}}{_FLAGS}")
_LOGIN_FLAG = re.compile(rf"-[A-Za-z]{{0,4}}[uU]|(?i:{_LOGIN_FLAGS})")
_LOGIN = re.compile(rf"([^\s:]{{0,100}}:)(?!//|(?i:https?:)|{_NUMBER}$|\$\w+$|\$\{{\w+\}}$|\{{[^{{}}]*\}}$).+", re.DOTALL)
_NOT_A_SECRET = re.compile(rf"-.*|{_NUMBER}", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:\w+|\{\w+\})")
_SCHEME = re.compile(r"(?i)\s*(?:bearer|basic|token)?\s*")
_NAME_ONLY = re.compile(r"[\w.-]*[:=]\s*")
_KEY_LIKE = re.compile(r"(?=.{0,200}\d)(?=.{0,200}[A-Za-z])[\w./+=:*~-]{12,}")


def is_secret_name(name: str) -> bool:
    """Return whether the name of a header, a parameter or a variable suggests a secret value."""
    return _SECRET_NAME.search(name) is not None


def is_secret_field(name: str, value: str) -> bool:
    """Return whether the name of a JSON field suggests a secret, and the value is not a placeholder."""
    return _SECRET_FIELD.fullmatch(name) is not None and not is_placeholder(value)


def mask_after_flag(flag: str, word: str) -> str:
    """Mask a word of a command line that is a secret because of the one before it, such as `--token` or `-u`."""
    if _LOGIN_FLAG.fullmatch(flag):
        return _LOGIN.sub(rf"\1{MASK}", word) if _LOGIN.fullmatch(word) else word
    is_secret = _SECRET_FLAG.fullmatch(flag) and not _NOT_A_SECRET.fullmatch(word) and not is_placeholder(word)
    return MASK if is_secret else word


def is_placeholder(value: str) -> bool:
    """Return whether a value consists of variables (`Bearer $NAME`) or is a field (`{name}`), or is empty."""
    return _SCHEME.fullmatch(without_variables(value)) is not None or (value.startswith("{") and value.endswith("}"))


def without_variables(text: str) -> str:
    """Remove each `$NAME` and `${NAME}` from a text."""
    return _VARIABLE.sub("", text)


def mask_shapes(text: str, *, certain: bool = False) -> str:
    """Mask everything that has the form of a secret; with `certain`, not values that only follow a name such as `password:`."""
    folded_text = text.casefold()
    if _has_marker(folded_text, _MARKERS):
        for shape in _SHAPES:
            if _has_marker(folded_text, shape.marker_groups):
                text = shape.mask(text, None if shape.is_certain or not certain else _is_key_like)
    return text


def mask_literals(text: str) -> str:
    """Mask everything that has the form of a secret, except values that consist of variables."""
    for shape in _SHAPES:
        text = shape.mask(text, _is_literal)
    return text


def may_have_shape(text: str) -> bool:
    """Return whether `mask_shapes` could change a text, or a text inside this JSON."""
    return _has_marker(text.casefold(), _MARKERS)


def _is_key_like(value: str) -> bool:
    return _KEY_LIKE.fullmatch(value.strip("\"'")) is not None


def _is_literal(value: str) -> bool:
    """Return whether a value is more than variables with a scheme or a name (`Bearer $NAME`, `user:$NAME`), or a field."""
    visible_text = without_variables(value)
    if visible_text == value:
        return not (value.startswith("{") and value.endswith("}"))
    return _SCHEME.fullmatch(visible_text) is None and _NAME_ONLY.fullmatch(visible_text) is None
