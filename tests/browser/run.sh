#!/usr/bin/env bash
# Run the page's tests, or say why they cannot run here. Use: run.sh PYTHON
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
  echo "skipped: the tests of the page need $1, which cannot be installed here"
  exit 0
}

has_chromium() { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null
add_chromium() { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; } >/dev/null 2>&1

"$1" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[serve]' playwright || skip playwright
has_chromium || add_chromium || skip chromium
exec "$1" -m pytest tests/browser
