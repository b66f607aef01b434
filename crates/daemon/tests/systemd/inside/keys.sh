# Keys and configurations: how the service gets them, and that other users do not.

nothing_secret_is_seen() {
    local process
    process=$(pid weft@wg0)
    for key in near far; do
        local text
        text=$(cat /tmp/s/$key.key)
        tr '\0' '\n' <"/proc/$process/environ" | absent "$text" "a key in the environment"
        tr '\0' ' ' <"/proc/$process/cmdline" | absent "$text" "a key in the process list"
        systemctl show weft@wg0 | absent "$text" "a key in the unit"
        journal weft@wg0 | absent "$text" "a key in the journal"
    done
}

keys_come_as_credentials() {
    systemd-creds setup >&2
    weft genkey | private /etc/wireguard/wg1.key
    weft genpsk | systemd-creds encrypt --with-key=host --name=wg1.psk - /etc/wireguard/wg1.psk.cred >&2
    drop_in /etc weft@wg1 keys <<'UNIT'
[Service]
LoadCredential=wg1.key:/etc/wireguard/wg1.key
LoadCredentialEncrypted=wg1.psk:/etc/wireguard/wg1.psk.cred
UNIT
    wg1_config >/etc/wireguard/wg1.conf
    systemctl start weft@wg1
    is "$(wg show wg1 public-key)" "$(weft pubkey </etc/wireguard/wg1.key)"
    local psk
    psk=$(systemd-creds decrypt --name=wg1.psk /etc/wireguard/wg1.psk.cred -)
    is "$(wg show wg1 preshared-keys | awk '{print $2}')" "$psk"
    for key in "$psk" "$(cat /etc/wireguard/wg1.key)"; do
        tr '\0' '\n' <"/proc/$(pid weft@wg1)/environ" | absent "$key" "a key in the environment"
        tr '\0' ' ' <"/proc/$(pid weft@wg1)/cmdline" | absent "$key" "a key in the process list"
    done
    journal weft@wg1 | absent "others can read" "a warning of permissions that are right"
    # Another key is taken by a reload, although the credential is the one of the start; what is encrypted stays.
    weft genkey | private /etc/wireguard/wg1.key
    systemctl reload weft@wg1
    is "$(wg show wg1 public-key)" "$(weft pubkey </etc/wireguard/wg1.key)"
    is "$(wg show wg1 preshared-keys | awk '{print $2}')" "$psk"
    systemctl stop weft@wg1
}
wg1_config() {
    cat <<CONF
[Interface]
PrivateKeyFile = wg1.key
Address = 10.10.0.1/24
[Peer]
PublicKey = $(cat /tmp/s/third.pub)
PresharedKeyFile = wg1.psk
AllowedIPs = 10.10.0.2/32
CONF
}

a_configuration_may_be_longer_than_a_credential() {
    perl -MMIME::Base64 -e '
        print "[Interface]\nPrivateKey = $ARGV[0]\n";
        for my $n (0 .. 11999) {
            my $key = encode_base64(join("", map { chr(rand(256)) } 1 .. 32), "");
            printf "[Peer]\nPublicKey = %s\nAllowedIPs = 10.%d.%d.%d/32\n", $key, 128 + $n / 65536, $n / 256 % 256, $n % 256;
        }' "$(cat /tmp/s/third.key)" | private /etc/wireguard/long.conf
    # The routes of many peers are tested elsewhere.
    sed -i '2a Table = off' /etc/wireguard/long.conf
    chgrp weft /etc/wireguard /etc/wireguard/long.conf
    chmod 750 /etc/wireguard
    chmod 640 /etc/wireguard/long.conf
    printf '[Service]\nLoadCredential=\n' | drop_in /etc weft@long long
    local before
    before=$(now)
    systemctl start weft@long
    echo "$(stat -c %s /etc/wireguard/long.conf) bytes, started in $(ms_since "$before")"
    is "$(wg show long peers | wc -l)" 12000
    is "$(show StatusText weft@long)" "no handshake yet"
    systemctl stop weft@long
    chgrp root /etc/wireguard
    chmod 700 /etc/wireguard
}
