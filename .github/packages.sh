#!/bin/sh
# Programs that the whole suite uses and that a Linux runner lacks; run as root. Runners have
# PostgreSQL, Chrome with its driver, npm and a C compiler.
set -eu
apt-get update -qq
apt-get install -y -qq --no-install-recommends redis-server prometheus strace
# The tests start servers of their own.
systemctl stop redis-server prometheus
# The tests look for the name that Debian gives it.
command -v chromium >/dev/null || ln -s "$(command -v google-chrome)" /usr/local/bin/chromium
