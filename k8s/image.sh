#!/usr/bin/env bash
# Builds the container image, without a daemon where buildah or podman is here.
#
#   k8s/image.sh [--tag NAME:TAG] [--model FILE.gguf] [--program FILE] [--library FILE.so]...
#
# --tag      the image's name; by default baton-cloud with the version of this checkout, as the manifests have it
# --model    bakes this model in as /models/model.gguf, with FILE.heads.json beside it where there is one;
#            without it the model is mounted at /models
# --program  a baton-cloud that is built already, by itself as here; by default it is built now, with the profile dist
# --library  puts a shared library, and what it needs itself, where the program looks for it: NVRTC's two, for NVIDIA's
#            GPUs. May be given several times
#
# Prints the image's id. The same program and model give the same image: file times are set to zero.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
fail() { printf 'image.sh: %s\n' "$*" >&2; exit 1; }

tag="" model="" program="" opened=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || fail "$1 needs a value"
  case "$1" in
    --tag) tag=$2 ;;
    --model) model=$2 ;;
    --program) program=$2 ;;
    --library) opened+=("$2") ;;
    *) fail "unknown option $1" ;;
  esac
  shift 2
done
if [ -z "$tag" ]; then
  tag=baton-cloud:$(awk -F'"' '/^\[workspace.package\]/ {on = 1} on && /^version/ {print $2; exit}' "$top/Cargo.toml")
fi
if [ -z "$program" ]; then
  (cd "$top" && cargo build --profile dist --locked -p baton-cloud --bin baton-cloud) >&2
  program=${CARGO_TARGET_DIR:-$top/target}/dist/baton-cloud
fi
[ -x "$program" ] || fail "there is no program at $program"
[ -z "$model" ] || [ -f "$model" ] || fail "there is no model at $model"
for library in ${opened[@]+"${opened[@]}"}; do
  [ -f "$library" ] || fail "there is no library at $library"
done

context=$(mktemp -d)
trap 'rm -rf "$context"' EXIT
root=$context/rootfs
mkdir -p "$root/usr/local/bin" "$root/etc" "$context/no-model" "$context/model"

# The program without the tables that only a debugger reads.
install -m 0755 "$program" "$root/usr/local/bin/baton-cloud"
if command -v strip >/dev/null 2>&1; then strip --strip-debug "$root/usr/local/bin/baton-cloud"; fi

# Libraries that it opens when it runs.
for library in ${opened[@]+"${opened[@]}"}; do
  mkdir -p "$root/usr/lib"
  install -m 0755 "$(readlink -f "$library")" "$root/usr/lib/$(basename "$library")"
done

# Its libraries and their loader, where it looks for them; none where it is linked statically.
needed() { for file in "$program" ${opened[@]+"${opened[@]}"}; do ldd "$file" 2>/dev/null || true; done; }
libraries=$(needed | grep -o '/[^ ]*' | sort -u) || true
for library in $libraries; do
  mkdir -p "$root$(dirname "$library")"
  install -m 0755 "$(readlink -f "$library")" "$root$library"
done
# Host names come from the hosts file, then from DNS. There are no authorities' certificates: a database's comes with a
# Secret, and traces go without TLS.
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"

arguments=()
if [ -n "$model" ]; then
  install -m 0644 "$model" "$context/model/model.gguf"
  heads=${model%.gguf}.heads.json
  [ ! -f "$heads" ] || install -m 0644 "$heads" "$context/model/model.heads.json"
  arguments=(--build-arg MODEL=model)
fi

if command -v buildah >/dev/null 2>&1; then
  buildah bud --quiet --isolation chroot --timestamp 0 "${arguments[@]}" --tag "$tag" --file "$top/k8s/Containerfile" "$context"
elif command -v podman >/dev/null 2>&1; then
  podman build --quiet --timestamp 0 "${arguments[@]}" --tag "$tag" --file "$top/k8s/Containerfile" "$context"
elif command -v docker >/dev/null 2>&1; then
  docker build --quiet "${arguments[@]}" --tag "$tag" --file "$top/k8s/Containerfile" "$context"
else
  fail "none of buildah, podman and docker is here"
fi
