"""Two namespaces whose pods write their journals to one node: neither can read, rename or remove anything of the other."""

import copy
import os
import shlex
import subprocess

GROUP = 65533
CLAIM = "vramshim-journals"


def mutating(documents):
    """What changes pods."""
    return [one for one in documents["policy"] if not one["kind"].startswith("Validating")]


def as_mutations(documents):
    """The policy that refuses pods, as one of the kind that the API server's code is built for here: it names what it refuses.

    The expressions, their variables and conditions have one language in both kinds.
    """
    [policy] = copy.deepcopy([one for one in documents if one["kind"] == "ValidatingAdmissionPolicy"])
    [binding] = copy.deepcopy([one for one in documents if one["kind"] == "ValidatingAdmissionPolicyBinding"])
    policy["kind"], binding["kind"] = "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"
    del binding["spec"]["validationActions"]
    refuse = "[JSONPatch{op: 'add', path: '/spec/hostname', value: 'refused'}]"
    policy["spec"]["mutations"] = [
        {"patchType": "JSONPatch", "jsonPatch": {"expression": f"({one['expression']}) ? [] : {refuse}"}}
        for one in policy["spec"].pop("validations")
    ]
    policy["spec"]["reinvocationPolicy"] = "Never"
    return [policy, binding]


def check_mounts(that, admit, pod, policy, admitted):
    """Pods that people wrote by hand: who mounts more than their own folder is refused."""
    volumes = [{"name": "all", "persistentVolumeClaim": {"claimName": CLAIM}}, {"name": "own", "emptyDir": {}}]
    own = "$(NAMESPACE_FOR_VRAMSHIM)_$(POD_FOR_VRAMSHIM)"

    def field(name, path):
        return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}

    names = [field("NAMESPACE_FOR_VRAMSHIM", "metadata.namespace"), field("POD_FOR_VRAMSHIM", "metadata.name")]
    other = {"name": "NAMESPACE_FOR_VRAMSHIM", "value": "team"}
    renamed = [names[0], field("POD_FOR_VRAMSHIM", "metadata.labels['name']")]

    def container(env, **mount):
        mounts = [{"name": "all", "mountPath": "/journals", **mount}, {"name": "own", "mountPath": "/own"}]
        return {"name": "main", "image": "job", "env": env, "volumeMounts": mounts}

    plain = {"name": "main", "image": "job"}
    cases = [
        ("whole", True, {"containers": [container([])]}),
        ("fixed", True, {"containers": [container(names, subPath="team_train-0")]}),
        ("below", True, {"containers": [container(names, subPathExpr=own + "/../team_train-0")]}),
        ("own", False, {"containers": [container(names, subPathExpr=own)]}),
        ("without", True, {"containers": [container([], subPathExpr=own)]}),
        ("said", True, {"containers": [container([other, names[1]], subPathExpr=own)]}),
        ("again", True, {"containers": [container([*names, other], subPathExpr=own)]}),
        ("renamed", True, {"containers": [container(renamed, subPathExpr=own)]}),
        ("init", True, {"containers": [plain], "initContainers": [{**container([]), "name": "init"}]}),
        ("attached", True, {"containers": [plain], "ephemeralContainers": [{**container([]), "name": "debug"}]}),
        ("unmounted", False, {"containers": [plain]}),
    ]
    pods = [pod("node", name, volumes=volumes, **spec) for name, _, spec in cases]
    # The claim of a generic ephemeral volume has the names of the pod and the volume.
    made = {"name": "journals", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    mounts = [{"name": "journals", "mountPath": "/journals"}]
    pods.append(pod("node", "vramshim", containers=[{**plain, "volumeMounts": mounts}], volumes=[made]))
    pods.append(pod("node", "no-claim", containers=[container([])], volumes=[{"name": "all", "emptyDir": {}}, volumes[1]]))
    expected = {**{name: refused for name, refused, _ in cases}, "vramshim": True, "no-claim": False, "on-node": False}
    done = admit([*pods, {"apiVersion": "v1", "kind": "Pod", **admitted}], as_mutations(policy))
    for name, is_refused in expected.items():
        that((done[name]["spec"].get("hostname") == "refused") == is_refused, f"the pod {name}: refused is not {is_refused}")
    print(f"{len(expected)} pods mount their own journals, or are refused")


def check_folders(that, in_root, new, node, mine):
    """`mine`: the folder of a pod of another namespace, with a journal. Who looks is of the same user, or root of its own."""
    theirs = f"{node}/other_train-0"
    os.mkdir(theirs)
    os.chmod(theirs, 0o3777)
    [journal] = [one for one in os.listdir(mine) if one.endswith(".vraj")]
    script = f"""
        cd /var/log/vramshim && echo own > file || exit 1
        ! mv file ../{os.path.basename(mine)}/ 2> /dev/null || exit 2
        ! cat {os.path.basename(mine)}/{journal} > /dev/null 2>&1 || exit 3
        find / -path /proc -prune -o -name {journal} -print 2> /dev/null | grep -q . && exit 4
        exit 0"""
    # A namespace in which root is user 100000 of the machine.
    holder = subprocess.Popen(["unshare", "--user", "sh", "-c", "echo there && exec sleep 100"], stdout=subprocess.PIPE)
    holder.stdout.readline()
    for kind in ("uid", "gid"):
        with open(f"/proc/{holder.pid}/{kind}_map", "w") as file:
            file.write("0 100000 65533")
    for who, is_root_there in ((1234, False), (0, True)):
        command = in_root(new(), [(theirs, "/var/log/vramshim", "rw")], (who, who, who), ["sh", "-c", script], {})
        if is_root_there:
            enter = f"exec nsenter --user=/proc/{holder.pid}/ns/user --setuid=0 --setgid=0 chroot "
            command[-1] = command[-1].replace("exec chroot ", enter)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
        that(ran.returncode == 0, f"the pod of another namespace (user {who}) ended with {ran.returncode}: {ran.stderr}")
        owner = os.stat(f"{theirs}/file").st_uid
        that(owner == (100000 if is_root_there else who), f"the pod's file is of user {owner}")
        os.remove(f"{theirs}/file")
    holder.kill()
    holder.wait()
    # Without containers, on one machine: another user, also of the group, in the folder itself.
    for group, may_read in ((4321, False), (GROUP, True)):
        for command, works in ((f"cat {shlex.quote(journal)}", may_read), (f"mv {journal} x", False), (f"rm -f {journal}", False)):
            who = ["setpriv", "--reuid=4321", f"--regid={group}", "--clear-groups", "sh", "-c", command]
            ran = subprocess.run(who, cwd=mine, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            that((ran.returncode == 0) == works, f"user 4321, group {group}: {command}: {ran.returncode}, {ran.stderr}")
    print("a pod of another namespace, and another user, read, rename and remove nothing")
