from __future__ import annotations

from typing import Any

import pytest

from lllaunch.config.read import (
    exposed,
    holds_env,
    literals,
    not_secret,
)
from lllaunch.secret_names import is_secret_name, redacted_overrides


@pytest.mark.parametrize(
    "name",
    [
        *("HF_TOKEN", "TOKEN", "WANDB_API_KEY", "api_key", "AWS_SECRET_ACCESS_KEY"),
        *("Db_Password", "MY_CREDENTIAL", "secret"),
        *("api-key", "apiKey", "APIKey", "API_KEY2", "HF-TOKEN", "hfToken", "WANDB.API_KEY"),
        *("GOOGLE_APPLICATION_CREDENTIALS", "DB_PASSWD", "SSH_PASSPHRASE", "AWS_SECRETS"),
        *("private_key_value", "API_KEY_ID", "api_keys", "OPENAI_APIKEY", "TOKEN_OF_MINE"),
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


RANDOM = "aB3dE5gH7jK9mN1p"
HF = "hf_" + RANDOM


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *((RANDOM, "token"), ("0123456789abcdef" * 2, "API_KEY"), (RANDOM, "password")),
        *((HF, "x"), (f"--token={HF}", "args"), ("sk-proj-" + RANDOM, "args")),
        *(("ghp_" + "a1" * 15, "x"), ("AKIAIOSFODNN7EXAMPLE", "x"), ("xoxb-1234567890", "x")),
        *(("postgres://u:pw@h/db", "url"), ("-----BEGIN RSA PRIVATE KEY-----\nMII", "x")),
    ],
)
def test_what_looks_like_a_secret(text: str, name: str) -> None:
    assert [found for *_, found in literals({name: text})] == [text]
    allowed = not_secret({"launch": {"not_secret": [name]}})
    assert list(literals({name: [text]}, allowed=allowed)) == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        *(("sks", "placeholder_token"), ("C major", "key"), ("PATH", "env_key")),
        *(("image", "obs_key"), ("<|endoftext|>", "eos_token"), (512, "max_token"), ("", "secret")),
        *(("hunter2", "password"), (True, "token"), ("???", "token"), (None, "token")),
        *(("meta-llama/Llama-3.1-8B-Instruct", "model"), (RANDOM, "run_name")),
        *(("https://host:8080/a@b", "url"), ("postgres://u:${oc.env:PW}@h/db", "url")),
        *(("sk-learn-pipeline-v2-large", "x"), ("Bearer ${oc.env:T}", "auth_token")),
        *(("${oc.env:T,abc}", "token"), ("${oc.select:x,null}", "token")),
    ],
)
def test_what_does_not(text: Any, name: str) -> None:
    assert list(literals({name: text})) == []


def test_literals_are_found_anywhere_and_say_what_should_be_there() -> None:
    raw = {
        "a": {"api_key": RANDOM, "n_key": 3, "ok": "abc"},
        "TOKEN": ["one", "${oc.env:TWO}", {"inner": HF}],
        "url": f"https://${{oc.env:DB_PASSWORD,{RANDOM}}}@host",
        3: {"my-key": RANDOM},
        "joined": {"API_KEY": f"{RANDOM}-${{x}}-${{oc.env:Y,{HF}}}"},
    }
    assert list(literals(raw)) == [
        ("a.api_key", "${oc.env:API_KEY}", RANDOM),
        ("TOKEN[2].inner", "${oc.env:INNER}", HF),
        ("url", "${oc.env:DB_PASSWORD}", RANDOM),
        ("3.my-key", "${oc.env:MY_KEY}", RANDOM),
        ("joined.API_KEY", "${oc.env:Y}", HF),
        ("joined.API_KEY", "${oc.env:API_KEY}", f"{RANDOM}-"),
    ]


def test_other_values_under_names_that_say_secret_are_named() -> None:
    raw = {
        "db": {"password": "hunter2", "user": "u"},
        "api_key": "",
        "secret": "${oc.env:S}",
        "env_key": "PATH",
        "a": {"access_token": "abc"},
    }
    assert list(exposed(raw)) == ["db.password", "a.access_token"]
    assert list(exposed(raw, allowed=["db.password", "a"])) == []


@pytest.mark.parametrize(
    ("override", "written"),
    [
        ("lr=0.1", "lr=0.1"),
        ("~launch.env.HF_TOKEN", "~launch.env.HF_TOKEN"),
        ("sort_key=name", "sort_key=name"),
        (f"--api-key={RANDOM}", "--api-key=${oc.env:API_KEY}"),
        (f"+launch.env.HF_TOKEN={HF}", "+launch.env.HF_TOKEN=${oc.env:HF_TOKEN}"),
        (f"+launch.env.HF_TOKEN='{RANDOM}'", "+launch.env.HF_TOKEN='${oc.env:HF_TOKEN}'"),
        (f"t.token=${{oc.env:T,{RANDOM}}}", "t.token=${oc.env:T,${oc.env:T}}"),
        ("x=${oc.env:HOME,abc}", "x=${oc.env:HOME,abc}"),
        (f"x=${{oc.env:HF_TOKEN,{RANDOM}}}", "x=${oc.env:HF_TOKEN,${oc.env:HF_TOKEN}}"),
        (f"a.api_key=[x,{RANDOM}]", "a.api_key=[x,${oc.env:API_KEY}]"),
        (f"a.api_key=choice({RANDOM},b)", "a.api_key=choice(${oc.env:API_KEY},b)"),
        ("url=postgres://u:pw@h/db", "url=${oc.env:URL}"),
        ("a={url:postgres://u:pw@h/db,b:c}", "a={url:${oc.env:URL},b:c}"),
        ("k='-----BEGIN RSA PRIVATE KEY-----'", "k=${oc.env:K}"),
        (f"a={{token:b,run:{RANDOM}}}", f"a={{token:b,run:{RANDOM}}}"),
        (f"launch.env={{HF_TOKEN:{HF},B:1}}", "launch.env={HF_TOKEN:${oc.env:HF_TOKEN},B:1}"),
        (f"a={{'token': {RANDOM}}}", "a={'token': ${oc.env:TOKEN}}"),
        ("a={token: 'it\\'s, so'}", "a={token: 'it\\'s, so'}"),
        ("a={token:a${oc.env:T}b}", "a={token:a${oc.env:T}b}"),
        (f"a={{api-key:{RANDOM}${{oc.env:T}}}}", "a={api-key:${oc.env:API_KEY}${oc.env:T}}"),
        (r"a.key=$\{oc.env\:T\}", r"a.key=$\{oc.env\:T\}"),
        (rf"a.key=$\{{oc.env\:T\,{RANDOM}\}}", r"a.key=$\{oc.env\:T\,${oc.env:T}\}"),
        (f"a={{token:{{b:{RANDOM}}}}}", "a={token:{b:${oc.env:B}}}"),
        ("a={token:{b:c}}", "a={token:{b:c}}"),
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
