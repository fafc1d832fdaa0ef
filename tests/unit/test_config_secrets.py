from __future__ import annotations

from typing import Any

import pytest

from lllaunch.config.secrets import (
    holds_env,
    is_literal,
    literals,
    redacted_overrides,
)
from lllaunch.secret_names import is_secret_name


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "TOKEN", "WANDB_API_KEY", "api_key", "AWS_SECRET_ACCESS_KEY"),
        *("Db_Password", "MY_CREDENTIAL", "secret"),
        *("api-key", "apiKey", "APIKey", "API_KEY2", "HF-TOKEN", "hfToken", "WANDB.API_KEY"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "DB_PASSWD", "SSH_PASSPHRASE", "AWS_SECRETS"),
        *("private_key_value", "API_KEY_ID", "api_keys", "OPENAI_APIKEY"),
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        *("TOKENIZERS_PARALLELISM", "tokens", "keys", "MONKEY", "KEYBOARD", "", 3),
        *("sort_key", "primary_key", "sortKey", "PARTITION_KEY", "public-key", "cnn_keys"),
        *("max_new_tokens", "num_key_value_heads", "pad_token", "token_type", "KeyError"),
    ],
)
def test_names_that_only_look_like_it(name: Any) -> None:
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    ("raw", "name", "literal"),
    [
        ("prefix-${x}", "token", True),
        ("sk-live-abc${s}", "API_KEY", True),
        ("${a}-${b.${c}}", "token", False),
        ("Bearer ${oc.env:T}", "auth_token", False),
        ("${oc.select:x,abc}", "token", True),
        ("${oc.select:x,null}", "token", False),
        ("image", "obs_key", False),
        ("abc", "OBS_KEY", True),
        ("${oc.env:T,null}", "token", False),
        ("${oc.env:T,abc}", "token", True),
        ("a ${oc.env:A} ${oc.env:B,abc}", "token", True),
        ("???", "token", False),
        (True, "token", False),
        (512, "max_token", False),
        ("512", "max_token", False),
        (1234, "password", True),
        ("<pad>", "pad_token", False),
        ("<|endoftext|>", "eos_token", False),
        ("[MASK]", "mask_token", False),
    ],
)
def test_what_counts_as_a_literal(raw: Any, name: str, literal: bool) -> None:
    assert is_literal(raw, name) == literal


def test_literals_are_found_anywhere_and_say_what_should_be_there() -> None:
    raw = {
        "a": {"api_key": "xyz", "n_key": 3, "ok": "abc"},
        "TOKEN": ["one", "${oc.env:TWO}", {"inner": "three"}],
        "url": "https://${oc.env:DB_PASSWORD,hunter2}@host",
        3: {"my-key": "x1"},
        "joined": {"API_KEY": "sk-live-${x}-${oc.env:Y,more}"},
    }
    assert list(literals(raw)) == [
        ("a.api_key", "${oc.env:API_KEY}", "xyz"),
        ("TOKEN[0]", "${oc.env:TOKEN}", "one"),
        ("url", "${oc.env:DB_PASSWORD}", "hunter2"),
        ("3.my-key", "${oc.env:MY_KEY}", "x1"),
        ("joined.API_KEY", "${oc.env:Y}", "more"),
        ("joined.API_KEY", "${oc.env:API_KEY}", "sk-live-"),
    ]


@pytest.mark.parametrize(
    ("override", "written"),
    [
        ("lr=0.1", "lr=0.1"),
        ("~launch.env.HF_TOKEN", "~launch.env.HF_TOKEN"),
        ("--api-key=abc", "--api-key=${oc.env:API_KEY}"),
        ("+launch.env.HF_TOKEN=abc", "+launch.env.HF_TOKEN=${oc.env:HF_TOKEN}"),
        ("launch.env.HF_TOKEN='a b'", "launch.env.HF_TOKEN=${oc.env:HF_TOKEN}"),
        ("launch.env.HF_TOKEN=${oc.env:T,abc}", "launch.env.HF_TOKEN=${oc.env:T}"),
        ("x=${oc.env:HOME,abc}", "x=${oc.env:HOME,abc}"),
        ("x=${oc.env:HF_TOKEN,abc}", "x=${oc.env:HF_TOKEN}"),
        ("a.api_key=[x]", "a.api_key=${oc.env:API_KEY}"),
        ("a.max_token=512", "a.max_token=512"),
        ("launch.env={HF_TOKEN:abc,B:1}", "launch.env={HF_TOKEN:${oc.env:HF_TOKEN},B:1}"),
        ("launch.env={'HF_TOKEN': abc}", "launch.env={'HF_TOKEN': ${oc.env:HF_TOKEN}}"),
        ("a={token: 'it\\'s, so'}", "a={token: ${oc.env:TOKEN}}"),
        ("a={token:${oc.env:T,abc}}", "a={token:${oc.env:T}}"),
        ("a={token:a${oc.env:T}b}", "a={token:a${oc.env:T}b}"),
        ("a={api-key:sk-${oc.env:T}-live}", "a={api-key:${oc.env:API_KEY}}"),
        (r"a.key=$\{oc.env\:T\}", r"a.key=$\{oc.env\:T\}"),
        (r"a.key=$\{oc.env\:T\,abc1\}", "a.key=${oc.env:T}"),
        ("a={num_key:8,pad_token:<pad>}", "a={num_key:8,pad_token:<pad>}"),
        ("a={token:{b:c}}", "a=<redacted>"),
        ("api_key={token:abc,b:${c}}", "api_key=${oc.env:API_KEY}"),
        ("params.x=a=b", "params.x=a=b"),
    ],
)
def test_overrides_are_written_without_secrets(override: str, written: str) -> None:
    assert redacted_overrides([override]) == (written,)


@pytest.mark.parametrize(
    ("raw", "asks"),
    [
        ("${oc.env:A}", True),
        ("${f:${oc.env:A}}", True),
        (r"\\${oc.env:A}", True),
        (r"\${f:${oc.env:A}}", True),
        (r"${oc.decode:'\${oc.env:A}'}", True),
        (r"${f:'}', \${oc.env:A}}", True),
        (r"${oc.env:A}\${oc.env:B}", True),
        (r"${f:'\${x}',${oc.env:A}}", True),
        (r"\${oc.env:A}", False),
        (r"\\\${oc.env:A}", False),
        (r"${hydra:runtime.cwd}\${oc.env:A}", False),
        ("oc.env", False),
    ],
)
def test_what_asks_for_the_environment_is_not_escaped(raw: object, asks: bool) -> None:
    assert holds_env(raw) is asks
