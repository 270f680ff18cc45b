//! The devices that a job would see, as far as that is known before it starts, and the limits that name others.

use base::text::many;
use base::uuid::parse_uuid;
use quota::limits::{Limits, Name, begins};

/// The UUIDs of this machine's GPUs, from the files of NVIDIA's kernel module, in CUDA's order as far as that is known. `None`
/// for one that is not known; empty if there is no GPU.
pub fn of_machine() -> Vec<Option<String>> {
    let folders = std::fs::read_dir("/proc/driver/nvidia/gpus")
        .into_iter()
        .flatten()
        .flatten();
    let uuid = |folder: std::fs::DirEntry| {
        let text = std::fs::read_to_string(folder.path().join("information")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("GPU UUID:"))?;
        parse_uuid(line.trim()).map(|_| line.trim().to_owned())
    };
    folders.map(uuid).collect()
}

/// What is wrong with limits that name a device that a job on these devices does not see.
pub fn problem(devices: &[Option<String>], limits: &Limits) -> Option<String> {
    let (count, hidden_by) = (devices.len() as u32, std::env::var("CUDA_VISIBLE_DEVICES").ok());
    let uuids: Option<Vec<String>> = devices.iter().cloned().collect();
    let visible = hidden_by
        .as_ref()
        .map_or(count, |text| visible(text, count, uuids.as_deref()));
    limits.names().into_iter().find_map(|name| match name {
        _ if count == 0 => None,
        Name::Number(number) if number >= count => Some(match count {
            1 => format!("there is no device {number}, only device 0"),
            count => format!("there is no device {number}, only devices 0 to {}", count - 1),
        }),
        Name::Number(number) if number >= visible => Some(format!(
            "there is no device {number}: CUDA_VISIBLE_DEVICES={} leaves the job {}, numbered from 0",
            hidden_by.as_deref().unwrap_or_default(),
            many(visible.into(), "device")
        )),
        Name::Every | Name::Number(_) => None,
        // The instances of a divided GPU (MIG) are not in these files.
        Name::Uuid(uuid) if uuid.starts_with("MIG-") => None,
        Name::Uuid(uuid) => {
            let uuids = uuids.as_ref()?;
            let is_there = uuids.iter().any(|known| begins(&uuid, known));
            (!is_there).then(|| format!("there is no device {uuid}, only {}", uuids.join(", ")))
        }
    })
}

/// How many devices the value of CUDA_VISIBLE_DEVICES leaves. CUDA does not see what follows an entry that names no
/// device.
fn visible(text: &str, count: u32, uuids: Option<&[String]>) -> u32 {
    let is_there = |entry: &&str| match entry.trim().parse::<u32>() {
        Ok(number) => number < count,
        Err(_) => {
            let named = |uuid: &String| begins(entry.trim(), uuid);
            entry.trim().starts_with("MIG-")
                || entry.trim().starts_with("GPU-") && uuids.is_none_or(|uuids| uuids.iter().any(named))
        }
    };
    text.split(',').take_while(is_there).count() as u32
}
