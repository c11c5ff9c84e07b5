#!/bin/sh
# Programs that the whole suite uses and that a Linux runner lacks; run as root. Runners have
# PostgreSQL, Chrome with its driver, npm, pipx and a C compiler.
set -eu
apt-get update -qq
apt-get install -y -qq --no-install-recommends redis-server prometheus strace libfaketime
# An installation with uv is one of those that make dist-check tries.
PIPX_HOME=/opt/pipx PIPX_BIN_DIR=/usr/local/bin pipx install --quiet uv
# The tests start servers of their own.
systemctl stop redis-server prometheus
# The tests look for the name that Debian gives it. The runner's own chromium has no right to make its
# sandbox, which Chrome has.
ln -sf "$(command -v google-chrome)" /usr/local/bin/chromium
# Chaos slows the disk of a running part with strace.
sysctl -q -w kernel.yama.ptrace_scope=0
