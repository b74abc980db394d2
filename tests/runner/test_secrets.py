"""Keys do not reach the journal, and other texts reach it unchanged."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evaljournal.runner.secrets.masking import mask

SECRETS = [
    "sk-proj-Ab12Cd34Ef56Gh78",
    "sk-ant-api03-Ab12Cd34Ef56-Gh78",
    "sk_live_Ab12Cd34Ef56",
    "gsk_Ab12Cd34Ef56Gh78Ij90",
    "hf_Ab12Cd34Ef56Gh78Ij90",
    "nvapi-Ab12Cd34Ef56Gh78Ij90",
    "ghp_Ab12Cd34Ef56Gh78Ij90",
    "github_pat_Ab12Cd34Ef56Gh78Ij90",
    "xoxb-1234567890-Ab12Cd34",
    "AIzaSyAb12Cd34Ef56Gh78Ij90Kl12Mn34Op56Q",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.Ab12Cd34Ef56",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("around", ["{}", "key {} was refused", "('{}',)", "https://api.example.com/v1/{}/models", "={}\n"])
def test_a_key_is_recognized_by_its_form(secret: str, around: str) -> None:
    """A key with a known prefix is masked anywhere in a text, and nothing else is."""
    assert around.format("***") == mask(around.format(secret))


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("{'Authorization': 'Bearer abc def', 'Host': 'x'}", "{'Authorization': 'Bearer ***', 'Host': 'x'}"),
        ('{"x-api-key": "0123"}', '{"x-api-key": "***"}'),
        ('{\\"api-key\\": \\"0123\\"}', '{\\"api-key\\": \\"***\\"}'),
        ("[(b'authorization', b'Basic dXNlcg=='), (b'host', b'x')]", "[(b'authorization', b'Basic ***'), (b'host', b'x')]"),
        ("Authorization: AWS4-HMAC-SHA256 Credential=x/y, Signature=z\nHost: x", "Authorization: ***\nHost: x"),
        ("Cookie: session=abc; theme=dark\nHost: x", "Cookie: ***\nHost: x"),
        ("sent Bearer abcdef123456.", "sent Bearer ***"),
        ("GET https://x/y?api_key=0123&q=Paris", "GET https://x/y?api_key=***&q=Paris"),
        ("GET https://x/y?key=0123&q=Paris", "GET https://x/y?key=***&q=Paris"),
        ("https://x/y?X-Amz-Signature=0123&X-Amz-Date=2026", "https://x/y?X-Amz-Signature=***&X-Amz-Date=2026"),
        ("postgres://eva:pa55@db.example.com/runs", "postgres://***@db.example.com/runs"),
        ("OPENAI_API_KEY=0123 is not valid", "OPENAI_API_KEY=*** is not valid"),
        ("PGPASSWORD=hunter2 psql", "PGPASSWORD=*** psql"),
        ("curl -u eva:hunter2 -ueva:hunter2 --user 'eva:hunter2'", "curl -u eva:*** -ueva:*** --user 'eva:***'"),
        ("Client(api_key='0123', retries=2)", "Client(api_key='***', retries=2)"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG", "aws_secret_access_key = ***"),
        ("password: hunter2, user: eva", "password: ***, user: eva"),
        ("Incorrect API key provided: sk-ab12****************yz.", "Incorrect API key provided: ***."),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY-----\nend",
            "-----BEGIN RSA PRIVATE KEY-----***\nend",
        ),
    ],
)
def test_a_secret_is_recognized_by_its_position(text: str, masked: str) -> None:
    """A value in the position of a secret is masked whatever its form; the text next to it is kept."""
    assert masked == mask(text)


@pytest.mark.parametrize(
    "text",
    [
        "Unexpected token: '}' at line 3",
        "max_tokens=100, temperature=0",
        "no authorization, and no basic idea of the task",
        "KeyError: 'key'",
        "bearer authentication needs basic understanding",
        "https://api.example.com/v1/chat?q=risk-adjusted&page=2",
        "task-based evaluation of sklearn",
        "user@example.com wrote: see http://[::1]:8080/path",
        "api_key=''",
        "MONKEY=banana",
        "docker run -u 1000:1000 -p 80:80",
        "curl -u https://example.com -u localhost:8080",
    ],
)
def test_other_texts_are_unchanged(text: str) -> None:
    """Words that only resemble secrets are not masked."""
    assert text == mask(text)


@given(before=st.text(max_size=20), secret=st.sampled_from(SECRETS), after=st.text(max_size=20))
def test_a_key_is_masked_in_any_text(before: str, secret: str, after: str) -> None:
    """A key next to a space is masked in any text, and masking again changes nothing."""
    masked = mask(f"{before} {secret} {after}")

    assert secret not in masked
    assert masked == mask(masked)
