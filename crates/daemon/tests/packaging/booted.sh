#!/bin/bash
# Runs inside the copy of the system once it is booted, started by its systemd, with the packages in two versions.
set -u
. "$(dirname "$0")/helpers.sh"
results=/out/booted

show() { systemctl show --value -p "$1" "$2"; }

guarded() { nft list table inet weft-gateway && [ "$(show ActiveState weft-gateway)" = active ]; }

# The rules come back whenever the service nftables has emptied everything.
beside_nftables() {
    systemctl cat nftables >/dev/null || return 0
    local verb
    cp /etc/nftables.conf /opt/nftables.conf
    systemctl start nftables
    systemctl start weft-gateway
    guarded >/dev/null
    for verb in reload restart; do
        systemctl $verb nftables
        wait_for guarded
        is "$(cat /proc/sys/net/ipv4/ip_forward)" 1
    done
    # Rules that were loaded by hand are not reported, unless they are the same rules.
    nft -f /etc/nftables.conf
    refuse guarded
    systemctl reload weft-gateway
    guarded >/dev/null
    echo 'include "/etc/weft/gateway.nft"' >>/etc/nftables.conf
    nft -f /etc/nftables.conf
    guarded >/dev/null
    cp /opt/nftables.conf /etc/nftables.conf
    systemctl stop nftables
    refuse guarded
    is "$(show ActiveState weft-gateway)" inactive
    systemctl start weft-gateway
    guarded >/dev/null
    systemctl stop weft-gateway
}

# comes_and_goes COMMAND-THAT-INSTALLS COMMAND-THAT-UPGRADES COMMAND-THAT-REMOVES
comes_and_goes() {
    $1
    install -d -m 700 /etc/wireguard
    local name
    for name in wg0 wg1; do
        (umask 077; printf '[Interface]\nPrivateKey = %s\nAddress = 10.9.%s.1/24\n' "$(weft genkey)" "${name#wg}" \
            >/etc/wireguard/$name.conf)
    done
    is "$(systemctl list-units --all --no-legend 'weft*')" "" "before anything is started"
    systemctl enable --now weft@wg0
    systemctl enable weft@wg1
    local process
    process=$(show MainPID weft@wg0)
    ip link show wg0 >&2

    $2
    is "$(show ActiveState weft@wg0)" active
    [ "$(show MainPID weft@wg0)" != "$process" ] || { say "the old program runs on"; return 1; }
    is "$(show ActiveState weft@wg1)" inactive "although it is enabled: it was not started before"
    is "$(show NeedDaemonReload weft@wg0)" no

    if command -v nft >/dev/null; then
        systemctl start weft-gateway
        nft list table inet weft-gateway >/dev/null
        is "$(cat /proc/sys/net/ipv4/ip_forward)" 1
        # Without a transaction there would be a moment without rules; a wrong line leaves the old ones.
        cp /etc/weft/gateway.nft /opt/gateway.nft
        echo nonsense >>/etc/weft/gateway.nft
        refuse systemctl reload weft-gateway
        nft list table inet weft-gateway >/dev/null
        cp /opt/gateway.nft /etc/weft/gateway.nft
        systemctl reload weft-gateway
        systemctl stop weft-gateway
        nft list table inet weft-gateway >/dev/null
        beside_nftables
    fi

    $3
    refuse ip link show wg0
    is "$(systemctl list-units --no-legend --state=active,failed 'weft*')" "" "after the removal"
    ! command -v nft >/dev/null || is "$(nft list tables)" ""
}

an_upgrade_restarts_what_runs_and_a_removal_stops_it() {
    comes_and_goes "dpkg --install $(echo /opt/packages/weft_*-1_*.deb)" "dpkg --install $(echo /opt/packages/weft_*-2_*.deb)" \
        "dpkg --remove weft"
    dpkg --purge weft
    is "$(systemctl list-units --all --no-legend 'weft*' | grep -v not-found || true)" "" "after the purge"
    rm -r /etc/wireguard
}

an_rpm_upgrade_restarts_what_runs_and_an_erasure_stops_it() {
    comes_and_goes "rpm_install --install $(echo /opt/packages/weft-*-1.*.rpm)" \
        "rpm_install --upgrade $(echo /opt/packages/weft-*-2.*.rpm)" "rpm --erase weft"
    is "$(systemctl list-units --all --no-legend 'weft*' | grep -v not-found || true)" "" "after the erasure"
}

every_command_of_the_gateway_guide_works() {
    # What it finds wrong with this machine is not what is tried.
    awk '/^```sh/ {on = 1; next} /^```/ {on = 0} on' /opt/GATEWAY.md | sed 's/^weft doctor$/& || true/' >/opt/guide.sh
    [ "$(wc -l </opt/guide.sh)" -gt 35 ] || { say "the guide has lost its commands"; return 1; }
    (cd /opt/packages && bash -eu -o pipefail -x /opt/guide.sh >/opt/guide.log 2>&1) || { tail -30 /opt/guide.log >&2; return 1; }
    is "$(show ActiveState weft@wg0)" active
    is "$(weft show wg0 peers | wc -l)" 11 peers
    is "$(weft show wg0 public-key)" "$(weft pubkey </etc/wireguard/wg0.key)" "the key that came as a credential"
    is "$(cat /proc/sys/net/ipv4/ip_forward)" 1
    nft list set inet weft-gateway may_talk_4 | grep -q 10.9.0.8/30
    local n
    for n in 2 11; do weft check "/root/peers/$n.conf" >&2; done
    tar --list --file /root/weft-backup.tar.gz | grep -q etc/wireguard/wg0.key
    dpkg --purge weft
    rm -r /etc/wireguard /etc/systemd/system/weft@wg0.service.d
    systemctl daemon-reload
}

the_readme_takes_a_gateway_to_a_phone() {
    dpkg --install "$(echo /opt/packages/weft_*-1_*.deb)"
    awk '/^###/ {here = /A gateway, and a phone/} /^```/ {on = here && /sh$/; next} on' /usr/share/doc/weft/README.md >/opt/readme.sh
    is "$(grep -c '^weft peer add phone .*--qr' /opt/readme.sh)" 1 "codes for a phone"
    bash -eu -o pipefail -x /opt/readme.sh >/opt/readme.log 2>&1 || { tail -30 /opt/readme.log >&2; return 1; }
    is "$(show ActiveState weft@wg0) $(show ActiveState weft-gateway)" "active active"
    is "$(weft show wg0 peers | wc -l)" 1 peers
    dpkg --purge weft
    rm -r /etc/wireguard
}

# The logs of the services are shown to the user who runs the test.
booted() {
    # What stands before || would run without errexit.
    scenario "$1"
    [ $? -eq 0 ] || journalctl --no-pager -n 40 >&2
}

if command -v nft >/dev/null; then
    booted every_command_of_the_gateway_guide_works
    booted the_readme_takes_a_gateway_to_a_phone
else
    not_run every_command_of_the_gateway_guide_works "nftables is not installed"
    not_run the_readme_takes_a_gateway_to_a_phone "nftables is not installed"
fi
booted an_upgrade_restarts_what_runs_and_a_removal_stops_it
if compgen -G '/opt/packages/*.rpm' >/dev/null; then
    booted an_rpm_upgrade_restarts_what_runs_and_an_erasure_stops_it
fi
