"""The two namespaces, Wine and the programs of scripts/test-wine."""
import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import time

fake = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(fake))
TARGET = "x86_64-pc-windows-gnu"
PROGRAM, WINESERVER = "/usr/lib/wine/wine64", "/usr/lib/wine/wineserver64"
# Wine needs a page at a fixed address. With random addresses, about one start in 6,000 has its heap there, and fails.
WINE = ["setarch", "--addr-no-randomize", PROGRAM]
PACKAGES = {"wine64": PROGRAM, "gcc-mingw-w64-x86-64-win32": "/usr/bin/x86_64-w64-mingw32-gcc"}
MTU, PORT = 1420, 51820
WINDOWS, LINUX = "10.99.0.1", "10.99.0.2"
CLONE_NEWNET = 0x40000000
# Where the service control manager has the environment of services from, and where logs of services are.
VARIABLES = r"HKLM\System\CurrentControlSet\Control\Session Manager\Environment"
LOGS = "drive_c/windows/system32/LogFiles"
# The packages whose unit tests call Windows, and which tests to run.
TESTS = {"pipe": ["weft-ipc"], "uapi": ["weft-uapi"],
         "control": ["weft", "control::", "logging::file", "service"], "tun": ["weft-tun", "windows::"],
         "host": ["weft-host", "firewall::wfp", "routes::", "network::", "dns::registry::system", "platform::",
                  "memory::", "record::", "--include-ignored"]}

# The builds for Windows have a separate directory: other builds need not wait for them.
target = os.path.abspath(os.environ.get("CARGO_TARGET_DIR", os.path.join(ROOT, "target")))
windows_target = os.path.join(target, "windows")
environment = dict(os.environ, CARGO_TARGET_DIR=windows_target, CARGO_PROFILE_DEV_DEBUG="none", CARGO_INCREMENTAL="0")


def run(*command, **options):
    return subprocess.run(command, check=True, text=True, **options)


def output(*command, **options):
    return run(*command, stdout=subprocess.PIPE, **options).stdout.strip()


def until(condition, what, seconds=60, pause=0.05):
    """Waits for another program."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds} s")
        time.sleep(pause)


def install():
    missing = [package for package, file in PACKAGES.items() if not os.path.exists(file)]
    if missing and os.geteuid() == 0 and shutil.which("apt-get"):
        quiet = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        subprocess.run(["apt-get", "update"], **quiet)
        apt = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
        subprocess.run(["apt-get", "install", "-y", "-o", "DPkg::Lock::Timeout=120", "--no-install-recommends", *missing], env=apt, **quiet)
        missing = [package for package, file in PACKAGES.items() if not os.path.exists(file)]
    if missing:
        return f"{' and '.join(missing)} cannot be installed"
    if os.geteuid() != 0 or not os.path.exists("/dev/net/tun"):
        return "needs root and /dev/net/tun"
    if subprocess.run(["rustup", "target", "add", TARGET], capture_output=True).returncode:
        return f"rustup cannot add {TARGET}"
    return None


def build_for_windows():
    """Builds the Windows programs, and returns those of the unit tests by name. Both calls name the same packages, and
    a program of tests, so that the features of their dependencies are the same, too: none is compiled twice."""
    def cargo(*arguments):
        packages = {"weft", "fake-wintun", *(package for package, *_ in TESTS.values())}
        named = [word for package in sorted(packages) for word in ("-p", package)]
        return output("cargo", *arguments, "--quiet", "--locked", "--target", TARGET, *named, cwd=ROOT, env=environment)
    cargo("build", "--lib", "--bin", "weft", "--test", "docs")
    messages = map(json.loads, cargo("test", "--lib", "--no-run", "--message-format=json").splitlines())
    programs = {message["target"]["name"]: message["executable"] for message in messages if message.get("executable")}
    return {name: programs[package.replace("-", "_")] for name, (package, *_) in TESTS.items()}


def build(folder):
    """Puts the Windows programs into a folder, as a user would, and returns the path of weft for Linux."""
    tests = build_for_windows()
    os.mkdir(folder)
    for file in ["weft.exe", "wintun.dll"]:
        shutil.copy(os.path.join(windows_target, TARGET, "debug", file), folder)
    for name, file in tests.items():
        shutil.copy(file, f"{folder}/{name}_tests.exe")
    run("x86_64-w64-mingw32-gcc", "-shared", "-o", f"{folder}/bcryptprimitives.dll", f"{fake}/bcryptprimitives.c",
        "-ladvapi32")
    # What scripts/test builds, too: of the workspace, and beside a program of tests.
    run("cargo", "build", "--quiet", "--locked", "--workspace", "--bin", "weft", "--test", "docs", cwd=ROOT)
    return os.path.join(target, "debug/weft")


@contextlib.contextmanager
def in_namespace(name):
    """Puts this thread into a namespace."""
    before = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    there = os.open(f"/var/run/netns/{name}", os.O_RDONLY)
    try:
        if libc.setns(there, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        yield
    finally:
        libc.setns(before, 0)
        os.close(there)
        os.close(before)


class World:
    """Both namespaces, and the programs in them. There may be several at once, by number."""

    def __init__(self, work, weft, programs, number=0):
        self.work, self.weft, self.programs = work, weft, programs
        self.w, self.l = f"wine-w{number}-{os.getpid()}", f"wine-l{number}-{os.getpid()}"
        # The Linux end's interface: programs there have their sockets in one directory.
        self.lin = f"lin{number}"
        self.running = []
        self.count = 0
        self.keys = {}
        for side in (self.w, self.l):
            secret = output(weft, "genkey")
            self.keys[side] = (secret, output(weft, "pubkey", input=secret))
        self.wine = dict(os.environ, WINEPREFIX=f"{work}/prefix", WINEDEBUG="-all,err+virtual",
                         WINEDLLOVERRIDES="mscoree,mshtml=")

    def __enter__(self):
        try:
            self.open()
        except BaseException:
            self.__exit__()
            raise
        return self

    def open(self):
        os.mkdir(self.work)
        for side in (self.w, self.l):
            run("ip", "netns", "add", side)
            run("ip", "-n", side, "link", "set", "lo", "up")
        run("ip", "link", "add", "va", "netns", self.w, "type", "veth", "peer", "name", "vb", "netns", self.l)
        for side, link, number in ((self.w, "va", 1), (self.l, "vb", 2)):
            run("ip", "-n", side, "addr", "add", f"192.0.2.{number}/24", "dev", link)
            run("ip", "-n", side, "addr", "add", f"2001:db8:1::{number}/64", "dev", link, "nodad")
            run("ip", "-n", side, "link", "set", link, "up")
        kernel = self.start(self.w, "python3", f"{fake}/kernel.py", "wtun", "7777", stdout=subprocess.PIPE)
        kernel.stdout.readline()
        run("ip", "-n", self.w, "addr", "add", f"{WINDOWS}/24", "dev", "wtun")
        run("ip", "-n", self.w, "link", "set", "wtun", "mtu", str(MTU), "up")
        # Stays with its services until the end. It opens the sockets of all programs.
        os.mkdir(self.wine["WINEPREFIX"])
        run("ip", "netns", "exec", self.w, WINESERVER, "-p", env=self.wine)
        self.wine["WEFT_FAKE_WINTUN_KERNEL"] = "127.0.0.1:7777"
        links = output("ip", "-n", self.w, "-o", "link", "show", "wtun")
        self.wine["WEFT_FAKE_WINTUN_INDEX"] = links.split(":")[0]

    def __exit__(self, *_):
        for process in reversed(self.running):
            self.stop(process)
        subprocess.run([WINESERVER, "-k"], env=self.wine, capture_output=True)
        for side in (self.w, self.l):
            subprocess.run(["ip", "netns", "del", side])

    def start(self, side, *command, **options):
        process = subprocess.Popen(["ip", "netns", "exec", side, *command], text=True, **options)
        self.running.append(process)
        return process

    def stop(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process in self.running:
            self.running.remove(process)

    def linux(self, program):
        """Starts the Linux end, and returns it."""
        name = self.lin
        command = [self.weft, "run", "-f", name] if program == "weft" else ["wireguard-go", "-f", name]
        log = open(f"{self.work}/{program}.log", "w")
        process = self.start(self.l, *command, stdout=log, stderr=log)
        wg = ("ip", "netns", "exec", self.l, "wg")
        until(lambda: os.path.exists(f"/var/run/wireguard/{name}.sock"), f"socket of {program}")
        key = f"{self.work}/key"
        with open(key, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(self.keys[self.l][0])
        run(*wg, "set", name, "listen-port", str(PORT), "private-key", key, "peer", self.keys[self.w][1],
            "allowed-ips", f"{WINDOWS}/32")
        run("ip", "-n", self.l, "addr", "add", f"{LINUX}/24", "dev", name)
        run("ip", "-n", self.l, "link", "set", name, "mtu", str(MTU), "up")
        return process

    def file(self, endpoint=f"192.0.2.2:{PORT}"):
        """Writes the configuration of the Windows end as a file, and returns its path for Windows."""
        with open(f"{self.work}/wg0.conf", "w") as file:
            file.write(f"[Interface]\nPrivateKey = {self.keys[self.w][0]}\nListenPort = {PORT}\n[Peer]\nPublicKey = "
                       f"{self.keys[self.l][1]}\nEndpoint = {endpoint}\nAllowedIPs = {LINUX}/32\n")
        return f"Z:{self.work}/wg0.conf"

    def interface(self, *file, **variables):
        """Starts weft.exe in the place of wireguard-go, configures it over its pipe, and returns it."""
        process = self.exe("weft.exe", "run", "-f", "wg0", LOG_LEVEL="verbose", **variables)
        until(lambda: process.poll() is not None or "can configure" in read(process.log), "interface of Windows")
        if process.poll() is not None:
            raise RuntimeError(read(process.log))
        self.weft_exe("setconf", "wg0", self.file(*file))
        return process

    def exe(self, program, *arguments, folder=None, **variables):
        """Starts a Windows program. Its output goes to files: Wine's services may keep a pipe open."""
        path = os.path.join(self.programs if folder is None else folder, program)
        self.count += 1
        outputs = [f"{self.work}/{kind}{self.count}" for kind in ("output", "log")]
        with open(outputs[0], "w") as stdout, open(outputs[1], "w") as stderr:
            process = self.start(self.w, *WINE, path, *arguments, env=dict(self.wine, **variables),
                                 stdin=subprocess.PIPE, stdout=stdout, stderr=stderr)
        process.output, process.log = outputs
        return process

    def end_of(self, process, status=0):
        """Waits for the end of a Windows program, and returns its output and its log."""
        try:
            process.wait(120)
        finally:
            self.stop(process)
        told = read(process.output), read(process.log)
        command = process.args[len(WINE) + 4:]
        assert process.returncode == status, f"{command}: status {process.returncode}\n{''.join(told)}"
        return told

    def weft_exe(self, *arguments):
        """Runs a command of Windows to its end, and returns its output."""
        return self.end_of(self.exe("weft.exe", *arguments))[0]

    def sc(self, *arguments):
        """Runs a command of the service control manager, and returns its exit status and its output."""
        process = self.exe("sc.exe", *arguments, folder="")
        process.wait(60)
        self.stop(process)
        return process.returncode, read(process.output)

    def begin_services(self):
        """Starts Wine again, with the environment of the stand-in for its services."""
        for name in ("WEFT_FAKE_WINTUN_KERNEL", "WEFT_FAKE_WINTUN_INDEX"):
            self.end_of(self.exe("reg.exe", "add", VARIABLES, "/v", name, "/d", self.wine[name], "/f", folder=""))
        run(WINESERVER, "-k", env=self.wine)
        run(WINESERVER, "-w", env=self.wine)
        run("ip", "netns", "exec", self.w, WINESERVER, "-p", env=self.wine)
        # Windows has it.
        os.makedirs(f"{self.wine['WINEPREFIX']}/{LOGS}", exist_ok=True)

    def service(self, name="wg0"):
        """Returns what `weft.exe service status` reports."""
        process = self.exe("weft.exe", "service", "status", name, "--json")
        process.wait(60)
        self.stop(process)
        return json.loads(read(process.output))

    def log_of_service(self, name="wg0"):
        return read(f"{self.wine['WINEPREFIX']}/{LOGS}/weft/{name}.log")

    def ping(self, count):
        """Pings from the Windows end, whose endpoint the other does not know, then from the Linux end."""
        run("ip", "netns", "exec", self.w, "ping", "-q", "-c", "1", "-W", "10", LINUX, stdout=subprocess.DEVNULL)
        text = output("ip", "netns", "exec", self.l, "ping", "-q", "-i", "0.02", "-c", str(count), "-W", "5", WINDOWS)
        assert f"{count} packets transmitted, {count} received" in text, text
        return f"{count} of {count}"

    def status(self):
        """Returns what the Windows end reports."""
        return json.loads(self.weft_exe("status", "wg0", "--json", "--sample", "0"))["interfaces"][0]

    def down(self, process):
        """Takes the Windows end down, and returns its log."""
        self.weft_exe("down", "wg0")
        return self.end_of(process)[1]

    def error_of(self, *arguments, folder=None, status=1):
        """Returns the one line that a command of Windows fails with."""
        log = self.end_of(self.exe("weft.exe", *arguments, folder=folder), status=status)[1]
        lines = [line for line in log.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1 and "trying again" not in log, log
        return lines[0]

    def refused(self, expected, *arguments, folder=None, status=1):
        """Checks the one line that a command of Windows fails with, and returns it."""
        error = self.error_of(*arguments, folder=folder, status=status)
        assert expected in error, error
        return error


def read(file):
    with open(file, errors="replace") as opened:
        return opened.read()
