//! The UUID of a device: 16 bytes, and the text that NVML writes for them (`GPU-...`, `MIG-...`).

/// The text of a device's UUID. It begins with `GPU-` even if the device is a MIG instance, because the 16 bytes do not
/// show that.
pub fn uuid_text(uuid: [u8; 16]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let [a, b, c, d, e] = [&uuid[..4], &uuid[4..6], &uuid[6..8], &uuid[8..10], &uuid[10..]].map(hex);
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

/// The bytes of a UUID that NVML wrote (`GPU-...`, `MIG-...`). `None` if the text behind the first dash does not have
/// exactly 32 hexadecimal digits.
pub fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let (_, digits) = text.split_once('-')?;
    uuid_bytes(digits)
}

/// The bytes of a text with exactly 32 hexadecimal digits.
pub fn uuid_bytes(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).ok()?;
    (digits.len() == 32).then(|| number.to_be_bytes())
}
