#!/bin/sh
# Makes the environment that runs the official PyTorch implementation: ./setup.sh FOLDER
# qwen-tts is unpacked rather than installed, because its dependencies (a demo interface, the 25 Hz tokenizer's
# audio tools) are not needed for the 12 Hz models; official.py stands in for the few that it imports.
set -eu
venv=${1:?usage: setup.sh FOLDER}
here=$(cd "$(dirname "$0")" && pwd)
python3.11 -m venv "$venv"
"$venv/bin/pip" install --quiet -r "$here/requirements.txt"
wheel=$(mktemp -d)
"$venv/bin/pip" download --quiet --no-deps --dest "$wheel" qwen-tts==0.1.1
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" -m zipfile -e "$wheel"/qwen_tts-*.whl "$site"
rm -r "$wheel"
echo "now run: $venv/bin/python $here/make.py"
