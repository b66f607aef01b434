#!/bin/bash
# Runs in place of weft in weft@.service, and tries what weft never should be able to do. One line each: what was tried,
# and `refused` or `done`.
try() {
    local name=$1
    shift
    if timeout 5 "$@" >/dev/null 2>/tmp/why; then echo "$name: done"; else echo "$name: refused"; fi
}
socket() { perl -e 'use Socket; socket(my $s, $ARGV[0], $ARGV[1], $ARGV[2]) or exit 1' "$@"; }
export -f socket

# What has to work, or the rest proves nothing.
try "run a program" true
try "write to the runtime directory" touch /run/weft/probe/file
rm -f /run/weft/probe/file
try "make a tun device" ip tuntap add dev probe0 mode tun
try "set it up" ip link set probe0 up
ip link del probe0 2>/dev/null
try "open a UDP socket" bash -c 'socket 2 2 17'
try "see itself" test -e /proc/self/status

try "change the files of another interface" touch /run/weft/wg0/probe
try "make a directory for another interface" mkdir /run/weft/another
rm -rf /run/weft/wg0/probe /run/weft/another 2>/dev/null
try "read the configurations of others" cat /etc/wireguard/wg0.conf
try "write to /etc" touch /etc/probe
try "write to /usr" touch /usr/probe
try "write to /var" touch /var/lib/probe
try "write to /boot" touch /boot/probe
try "look into homes" ls /root
try "load a module" perl -e 'open(my $f, "<", "/bin/true"); exit(syscall(313, fileno($f), my $e = "", 0) == 0 || $!{ENOEXEC} ? 0 : 1)'
try "open another device" bash -c ': <>/opt/weft-test/device'
try "make a device" mknod /run/weft/probe/device c 1 3
try "see the disks" ls /dev/vda /dev/sda /dev/mem /dev/kmsg
try "read the kernel's log" dmesg
try "set a sysctl" bash -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
try "set another sysctl" bash -c 'echo 1 >/proc/sys/kernel/sysrq'
try "change to another network namespace" nsenter --net=/run/netns/far true
try "make a network namespace" unshare --net true
try "make a user namespace" unshare --user true
try "mount" mount -t tmpfs tmpfs /tmp
try "set the clock" date -s 2030-01-01
try "set the host name" hostname probe
try "see other processes" ls /proc/1
try "send a signal to init" kill -0 1
try "become real-time" chrt -f 1 true
try "open a packet socket" bash -c 'socket 17 3 768'
try "open a raw socket" bash -c 'socket 2 3 1'
try "change the owner of a file" bash -c 'touch /run/weft/probe/owned && chown root /run/weft/probe/owned'
try "make a program setuid" bash -c 'touch /run/weft/probe/setuid && chmod u+s /run/weft/probe/setuid'
rm -f /run/weft/probe/owned /run/weft/probe/setuid /run/weft/probe/device
try "map memory to write and execute" perl -e 'exit(syscall(9, 0, 4096, 7, 0x22, -1, 0) == -1 ? 1 : 0)'
try "trace a process" perl -e 'exit(syscall(101, 0, 0, 0, 0) == -1 ? 1 : 0)'
try "gain rights by sudo's way" perl -e '$> = 0; exit($> == 0 ? 0 : 1)'
