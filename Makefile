# egpu: build, try, test, measure, package, install.
#
# On a fresh Debian or Ubuntu machine with Rust, as root, every target does all of its own set-up.
#
#   make build      release binaries in target/release; for the other architecture, in a folder of its name there:
#                   CARGO_BUILD_TARGET=aarch64-unknown-linux-gnu (LIBSECCOMP_LIB_PATH=<where its libseccomp.a is>, without Debian's)
#   make demo       the main job end to end on a real containerd; simulated cards where there is no NVIDIA driver
#   make test       everything that runs without a GPU: lints, unit tests, real containerd, what the binaries link to
#   make fault-test errors and SIGKILL at every system call of every step of a container's life, for hours; FAULT_SECONDS=600 tries a part
#                   (make test tries two minutes of them), FAULT_SEED=7 another part
#   make header-check HEADERS="FOLDER ..."  the tables against the headers of unpacked releases of NVIDIA's open kernel modules
#   make bench      egpu against runc in the same run (BENCH_ARGS="--runs 10 --save" does it ten times and keeps the result)
#   make text-order  shim/text-order.ld: what a container takes of the shim, for the linker; a shim that lacks it needs more memory and time
#   make bench-calls  what mediation costs a call of the driver, on a simulated card
#   make gpu-test   the suite on a machine with an NVIDIA driver; elsewhere, the bundle that carries it there
#   make compatibility  docs/compatibility.md from the kept results of programs
#   make cri-test   Kubernetes' clients and nerdctl, built from their sources: critest, kubelet's pods, nerdctl --gpus, against runc
#   make kube-test  a control plane, built from its sources, and a node with simulated cards, in namespaces of their own (KUBE_ARGS: names)
#   make demo-kubernetes  from nothing to pods with shares, on that cluster; make kube-bench: what claims cost there
#   make kube-scale placement over 100 nodes that are objects alone, by the stock scheduler and with egpu-scorer (KUBE_ARGS="--nodes 1000")
#   make chart-test  the Helm chart, linted and rendered by helm, which is built from its source; make kube-test installs it
#   make page-test  the node's page in Chromium, which is installed from Debian; PAGE_PICTURE=docs/page.png makes its picture
#   make monitoring-test  alerts of examples/metrics, evaluated by Prometheus' promtool, built from its source
#   make vm-test    the suite in a virtual machine with systemd, cgroup v2 and Debian's kernel (VM_ARGS="-a tcg" where there is no KVM)
#   make dist       packages in target/dist: deb, rpm, tarball, OCI image, checksums; make package-test checks them,
#                   make dist-check makes them twice from two clones and compares the bytes
#   make host-test  the packages on a clean Debian host: installed, renewed, removed (HOST_ARGS as for integration/vm/host.sh)
#   make install    into PREFIX (/usr/local), below DESTDIR; make uninstall refuses while containers use egpu
#   make next-build a build that stands for the next version of egpu, for the test of renewal
#   make lint       rustfmt and clippy, warnings denied; make deny: licences and sources of dependencies
#   make doc        the crates' documentation in target/doc, warnings denied

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := build

PREFIX ?= /usr/local
DESTDIR ?=
CARGO ?= cargo
TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))
RELEASE := $(TARGET)/$(if $(CARGO_BUILD_TARGET),$(CARGO_BUILD_TARGET)/)release
HEADER_CHECK := nvidia-glue/abi/header-check
HEADERS ?=
BENCH_ARGS ?=
FAULT_SECONDS ?= 0
FAULT_SEED ?= 41
KUBE_ARGS ?=
VM_ARGS ?=
HOST_ARGS ?=
PAGE_PICTURE ?=

# The architecture that is built for: this machine's, or CARGO_BUILD_TARGET's, with Debian's cross compiler as linker.
MACHINE := $(firstword $(subst -, ,$(CARGO_BUILD_TARGET)) $(shell uname -m))
ifneq ($(MACHINE),$(shell uname -m))
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER ?= aarch64-linux-gnu-gcc
export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_LINKER ?= x86_64-linux-gnu-gcc
# Its libraries, unpacked.
SYSROOT := $(TARGET)/sysroot/$(MACHINE)
endif

# Where that architecture's libseccomp.a is; it is linked in.
LIBSECCOMP_LIB_PATH ?= $(SYSROOT)/usr/lib/$(MACHINE)-linux-gnu
export LIBSECCOMP_LIB_PATH

# A program for containers of tests, which have no C library: static. With a target of its own, so that what the compiler
# itself loads is not.
RM_CLIENT_TARGET := $(MACHINE)-unknown-linux-gnu
RM_CLIENT := $(TARGET)/rm-client/$(RM_CLIENT_TARGET)/debug/rm-client
export EGPU_TEST_RM_CLIENT ?= $(RM_CLIENT)

# The commit, which --version says; kept where the release has no repository around it.
EGPU_REVISION ?= $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null)

build generated dist package-test: export EGPU_REVISION := $(EGPU_REVISION)

# No path of this machine gets into the release binaries, so that those of another folder are the same. Symbols' names are those
# that shim/text-order.ld has. These flags are added to those of .cargo/config.toml.
CARGO_HOME ?= $(HOME)/.cargo
REPRODUCIBLE := --config 'target.$(MACHINE)-unknown-linux-gnu.rustflags = [ "-Csymbol-mangling-version=v0", \
    "--remap-path-prefix=$(CARGO_HOME)/registry/src=/crates", "--remap-path-prefix=$(CURDIR)=/egpu", "--remap-path-prefix=$(TARGET)=/target"]'

# shim/build.rs: what a shim executes together is placed together.
export EGPU_TEXT_ORDER := 1

# What packages have besides the programs.
GENERATED := $(TARGET)/generated/$(MACHINE)

.PHONY: header-check rm-client next-build build build-kubernetes demo test lint deny doc unit-test integration-test fault-test link-test bench text-order bench-calls gpu-test compatibility cri-test kube-test demo-kubernetes kube-bench kube-scale chart-test monitoring-test page-test vm-test host-test generated dist package-test dist-check install install-kubernetes uninstall

build:
	$(if $(SYSROOT),packaging/sysroot.sh $(MACHINE) $(SYSROOT))
	scripts/setup.sh build
	$(CARGO) build --release --locked --package egpu-shim --package egpu-cli --bins $(REPRODUCIBLE)

# For clusters; what runs containers needs none of it.
build-kubernetes:
	scripts/setup.sh build
	$(CARGO) build --release --locked --package egpu-kubelet-plugin --package egpu-scorer --package kubectl-egpu --package egpu-webhook $(REPRODUCIBLE)
	scripts/check-linking.sh $(addprefix $(RELEASE)/,egpu-kubelet-plugin egpu-scorer kubectl-egpu egpu-webhook)

demo: build rm-client
	scripts/setup.sh containerd
	integration/demo/demo.sh $(RELEASE)

test: lint unit-test link-test package-test integration-test

lint:
	scripts/setup.sh build
	scripts/setup.sh tests
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings
	$(CARGO) clippy --package egpu-shim --package egpu-cli --package mediator --all-targets --features parking --locked -- -D warnings
	$(CARGO) clippy --package egpu-shim --package egpu-cli --no-default-features --locked -- -D warnings
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) clippy --manifest-path fuzz/Cargo.toml --target-dir $(TARGET)/fuzz --locked -- -D warnings
	$(CARGO) fmt --manifest-path $(HEADER_CHECK)/Cargo.toml --check
	$(CARGO) clippy --manifest-path $(HEADER_CHECK)/Cargo.toml --target-dir $(TARGET)/header-check --all-targets --locked -- -D warnings

# Without the suite that needs containerd, which runs on the release binaries.
unit-test:
	scripts/setup.sh build
	scripts/setup.sh tests
	$(CARGO) test --workspace --exclude integration --tests --locked --no-fail-fast
	$(CARGO) test --package integration --lib --locked
	$(CARGO) test --manifest-path $(HEADER_CHECK)/Cargo.toml --target-dir $(TARGET)/header-check --locked
	cd integration/gpu && python3 -B -m unittest discover --quiet --top-level-directory . --start-directory measure/tests
	cd integration/kube && python3 -B -m unittest --quiet test_helpers
	cd packaging && python3 -B -m unittest --quiet test_packaging
	$(CARGO) test --package mediator --lib --features parking --locked parking

# docs/driver-releases.md tells where the folders come from.
header-check:
	@[ -n "$(HEADERS)" ] || { echo 'usage: make header-check HEADERS="FOLDER ...", each an unpacked release of open-gpu-kernel-modules' >&2; exit 2; }
	scripts/setup.sh build
	$(CARGO) run --manifest-path $(HEADER_CHECK)/Cargo.toml --target-dir $(TARGET)/header-check --locked -- $(HEADERS)

rm-client:
	scripts/setup.sh build
	RUSTFLAGS="-C target-feature=+crt-static -C relocation-model=static" $(CARGO) build --locked --package rm-client --bin rm-client \
	    --target $(RM_CLIENT_TARGET) --target-dir $(TARGET)/rm-client

# The build that stands for the next version of egpu beside this one, for one test: its formats have the next numbers.
next-build:
	scripts/setup.sh build
	EGPU_REVISION=next CARGO_PROFILE_DEV_DEBUG=0 $(CARGO) build --package egpu-shim --package egpu-cli --bins --features next-format --target-dir $(TARGET)/next --locked

integration-test: build rm-client next-build
	scripts/setup.sh tests
	scripts/setup.sh containerd
	integration/setup-containerd.sh || echo "no second containerd could be had: testing on this machine's own alone" >&2
	EGPU_CONTAINERD_FOLDER=containerd-for-install integration/setup-containerd.sh trixie || \
	    echo "no containerd 1.7 could be had: egpu install is not tested on it" >&2
	integration/setup-docker.sh || echo "no Docker could be had: its tests are skipped" >&2
	integration/setup-runc.sh || echo "no current runc could be had: egpu is not compared with it" >&2
	EGPU_TEST_BIN=$(RELEASE) $(CARGO) test --package integration --test it --locked

# The table of its end is what docs/results keeps.
fault-test: build
	scripts/setup.sh tests
	scripts/setup.sh containerd
	EGPU_FAULT_SECONDS=$(FAULT_SECONDS) EGPU_FAULT_SEED=$(FAULT_SEED) EGPU_TEST_BIN=$(RELEASE) \
	    $(CARGO) test --package integration --test it --locked -- faults::

link-test: build
	scripts/check-linking.sh $(RELEASE)/containerd-shim-egpu-v1 $(RELEASE)/egpu

# Once: cargo install --locked cargo-deny
deny:
	$(CARGO) deny --workspace --all-features check bans licenses sources

doc:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps --document-private-items --locked

bench: build
	scripts/setup.sh tests
	scripts/setup.sh containerd
	integration/setup-runc.sh || echo "no current runc could be had: it has no column" >&2
	$(CARGO) build --release --locked --package egpu-shim --package egpu-cli --package null-shim --bins $(REPRODUCIBLE)
	EGPU_TEST_BIN=$(RELEASE) $(CARGO) bench --package integration --bench against_runc --profile dev --locked -- $(BENCH_ARGS)
	$(CARGO) bench --package nvidia-glue --bench admission --locked

# Again after larger changes of the shim or its libraries: which functions the linker places together.
text-order:
	scripts/setup.sh build
	scripts/setup.sh tests
	scripts/setup.sh containerd
	CARGO_PROFILE_RELEASE_STRIP=none $(CARGO) build --release --locked --package egpu-shim --package egpu-cli --bins --target-dir $(TARGET)/text-order $(REPRODUCIBLE)
	scripts/text-order/order.py $(TARGET)/text-order/release $(CARGO) bench --package integration --bench against_runc --profile dev --locked -- --only PSS

bench-calls: build rm-client
	scripts/setup.sh tests
	scripts/setup.sh containerd
	EGPU_TEST_BIN=$(RELEASE) $(CARGO) bench --package integration --bench mediated_calls --profile dev --locked -- $(BENCH_ARGS)
	$(CARGO) bench --package nvidia-glue --features simulated --bench mediation --locked

# Where there is no driver: the bundle only, to be unpacked on a machine that has one.
gpu-test: build
	scripts/setup.sh tests
	scripts/setup.sh containerd
	integration/gpu/bundle.sh
	@if [ -e /proc/driver/nvidia/version ]; then integration/gpu/run.sh; else \
	    echo "no NVIDIA driver here: unpack integration/gpu/bundle/egpu-gpu-test.tar.xz on a GPU machine and start run.sh"; \
	fi

compatibility:
	cd integration/gpu && python3 -B -m measure.programs.compatibility

cri-test: build rm-client
	scripts/setup.sh tests
	scripts/setup.sh containerd
	integration/setup-containerd.sh
	integration/setup-runc.sh
	integration/setup-cri.sh
	integration/cri/run.sh $(RELEASE) $(TARGET) $(EGPU_TEST_RM_CLIENT)

# Programs that run on a cluster: the cases, the demonstration, measurements.
demo-kubernetes: export EGPU_KUBE_PROGRAM := integration/demo/kubernetes.py
kube-bench: export EGPU_KUBE_PROGRAM := integration/kube/measure.py
kube-scale: export EGPU_KUBE_PROGRAM := integration/kube/scale.py

kube-test demo-kubernetes kube-bench kube-scale: build build-kubernetes rm-client
	scripts/setup.sh tests
	scripts/setup.sh containerd
	scripts/setup.sh kubernetes
	integration/kube/run.sh $(RELEASE) $(TARGET) $(EGPU_TEST_RM_CLIENT) $(KUBE_ARGS)

# Exit status 77 is a skipped run, which has said why.
chart-test:
	helm=$$(scripts/go-tool.sh helm) || exit $$(($$? == 77 ? 0 : 1)); packaging/check-chart.sh $$helm

# Chromium is too large to be installed for every change: make test looks at what is served, and skips the browser without one.
page-test: build rm-client
	scripts/setup.sh tests
	scripts/setup.sh containerd
	scripts/setup.sh browser
	# The page shows the host's name.
	EGPU_TEST_PAGE_PICTURE=$(abspath $(PAGE_PICTURE)) EGPU_TEST_BIN=$(RELEASE) \
	    unshare --uts sh -c 'echo node-1 >/proc/sys/kernel/hostname && exec "$$@"' sh \
	    $(CARGO) test --package integration --test it --locked -- page::

monitoring-test:
	promtool=$$(scripts/go-tool.sh promtool) || exit $$(($$? == 77 ? 0 : 1)); \
	$$promtool check rules --lint=all examples/metrics/alerts.yaml && $$promtool test rules examples/metrics/alerts-test.yaml

vm-test: build rm-client
	scripts/setup.sh tests
	integration/vm/run.sh -b $(RELEASE) $(VM_ARGS) || [ $$? = 77 ]

host-test: dist rm-client next-build
	scripts/setup.sh containerd
	integration/vm/host.sh -n $(TARGET)/next/debug $(HOST_ARGS) || [ $$? = 77 ]

# On this machine, whatever the packages are for.
generated:
	rm -rf $(GENERATED)
	env --unset=CARGO_BUILD_TARGET LIBSECCOMP_LIB_PATH=/usr/lib/$(shell uname -m)-linux-gnu \
	    $(CARGO) run --quiet --locked --package egpu-cli --example manual -- $(GENERATED)/manual
	packaging/licenses.py $(MACHINE)-unknown-linux-gnu "$(SYSROOT)" $(GENERATED)/licences

dist: build build-kubernetes generated
	scripts/setup.sh dist
	packaging/dist.sh $(MACHINE) $(RELEASE) $(GENERATED) "$(SYSROOT)" $(TARGET)/dist

package-test: build generated
	scripts/setup.sh dist || echo "packages of some kinds cannot be made here: they are not tested" >&2
	scripts/setup.sh containerd
	packaging/check.sh $(MACHINE) $(RELEASE) $(GENERATED) "$(SYSROOT)"

dist-check:
	packaging/reproduce.sh

install-kubernetes: build-kubernetes
	install -D --mode=755 --target-directory="$(DESTDIR)$(PREFIX)/bin" $(RELEASE)/egpu-kubelet-plugin $(RELEASE)/egpu-scorer $(RELEASE)/kubectl-egpu $(RELEASE)/egpu-webhook

install: build generated
	rm -rf $(TARGET)/stage
	packaging/stage.sh $(RELEASE) $(GENERATED) $(TARGET)/stage "$(PREFIX)"
	packaging/install.sh "$(TARGET)/stage$(PREFIX)" "$(DESTDIR)$(PREFIX)"
	@echo "'egpu install --dry-run' shows what 'egpu install' would change in containerd's configuration"

# Of an image, nothing runs.
uninstall:
	$(if $(DESTDIR),,"$(PREFIX)/bin/egpu" uninstall)
	packaging/uninstall.sh "$(DESTDIR)$(PREFIX)"
