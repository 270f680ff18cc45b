"""Checks the manifests of scripts/k8s with Kubernetes' own schemas and code, and runs their scripts.

Renders scripts/k8s with kubectl, validates each manifest, and gives pods to the policy as the API server would. As root it
then runs what the manifests run, each as its own user with a read-only root folder: a job on the simulated GPU, whose
journal a scrape of serve must show. It runs scripts/slurm, too. There is no cluster in this test. Run scripts/build and
`scripts/ci/setup kubernetes` first, and this file with kubernetes/python/bin/python of the cache.
"""

import json
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import kubernetes_validate
import yaml

import of_operator
import tenants

ROOT = os.path.abspath(f"{__file__}/../../..")
# The environment of this Python is in the folder of the tools.
TOOLS = os.path.dirname(sys.prefix)
ARTIFACTS = os.path.abspath(os.environ.get("VRAMSHIM_ARTIFACTS", f"{ROOT}/target/release"))
SIMGPU = f"{ROOT}/target/simgpu"
KUSTOMIZATIONS = ["serve", "policy", "prometheus-operator"]
GROUP = tenants.GROUP
GPU = {"limits": {"nvidia.com/gpu": "1"}}


def fail(message):
    sys.exit(f"kubernetes: {message}")


def that(truth, message):
    if not truth:
        fail(message)


def render(name):
    made = subprocess.run([f"{TOOLS}/kubectl", "kustomize", f"{ROOT}/scripts/k8s/{name}"], capture_output=True, text=True)
    that(made.returncode == 0, f"kustomize {name}: {made.stderr}")
    return list(yaml.safe_load_all(made.stdout))


def volumes_of_a_namespace():
    with open(f"{ROOT}/scripts/k8s/journals.yaml") as file:
        return list(yaml.safe_load_all(file.read().replace("NAMESPACE", "team")))


def validate(document):
    """Against the schema of the newest version, with no field that the schema does not know."""
    kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)


def check_manifests():
    documents = {name: render(name) for name in KUSTOMIZATIONS}
    everything = [one for some in documents.values() for one in some] + volumes_of_a_namespace()
    count = 0
    for document in everything:
        # Kubernetes' schemas do not have the kinds of the Prometheus operator.
        if document["kind"] in of_operator.KINDS:
            problems = of_operator.problems(document)
            that(not problems, f"{document['kind']}: {'; '.join(problems)}")
        else:
            validate(document)
            count += 1
    with open(f"{ROOT}/scripts/prometheus/vramshim.rules.yml") as file:
        rules = yaml.safe_load(file)
    ours = next(one for one in documents["prometheus-operator"] if one["kind"] == "PrometheusRule")
    that(ours["spec"] == rules, "scripts/k8s/prometheus-operator/prometheusrule.yaml has not the rules of scripts/prometheus")
    print(f"{len(documents['prometheus-operator'])} manifests fit the schemas of the Prometheus operator")
    print(f"{count} manifests fit the schemas of Kubernetes {kubernetes_validate.latest_version()}")
    return documents


def pod(namespace, name, labels=None, annotations=None, containers=None, **spec):
    main = {"name": "main", "image": "job", "resources": GPU}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {}, "annotations": annotations or {}},
        "spec": {"containers": containers or [main, {"name": "side", "image": "job"}], **spec},
    }


def admit(pods, policy):
    """The pods as the API server creates them."""
    enabled = {"vramshim.io/inject": "enabled"}
    labels = {"plain": {}, "all": enabled, "node": {**enabled, "vramshim.io/journals": "node"}, "vramshim-system": {}}
    namespaces = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": some}} for name, some in labels.items()
    ]
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, document in enumerate(policy + namespaces):
            files.append(f"{folder}/{number}.json")
            with open(files[-1], "w") as file:
                json.dump(document, file)
        command = [f"{TOOLS}/policy", *files]
        ran = subprocess.run(command, input=json.dumps({"items": pods}), capture_output=True, text=True, timeout=120)
    that(ran.returncode == 0, f"the API server's code: {ran.stderr[-3000:]}")
    return {one["metadata"]["name"]: one for one in json.loads(ran.stdout)["items"]}


def check_policy(documents):
    label = {"vramshim.io/inject": "enabled"}
    own = {
        "name": "main",
        "image": "job",
        "resources": GPU,
        "env": [{"name": "VRAMSHIM_STRATEGY", "value": "passthrough"}, {"name": "LD_PRELOAD", "value": "/a.so"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
    }
    secret = {"secretKeyRef": {"name": "s", "key": "k"}}
    hidden = {"name": "main", "image": "job", "resources": GPU, "env": [{"name": "LD_PRELOAD", "valueFrom": secret}]}
    claimed = {"name": "main", "image": "job", "resources": {"claims": [{"name": "gpu"}]}}
    pods = [
        pod("plain", "unlabelled"),
        pod("plain", "labelled", label, {"vramshim.io/strategy": "auto_growth", "vramshim.io/limit": "8GiB"}),
        pod("plain", "named", label, {"vramshim.io/containers": "side"}),
        pod("plain", "no-gpu", label, containers=[{"name": "main", "image": "job"}]),
        pod("plain", "claimed", label, containers=[claimed]),
        pod("plain", "own", label, containers=[own], volumes=[{"name": "data", "emptyDir": {}}],
            initContainers=[{"name": "first", "image": "job"}]),
        pod("plain", "hidden", label, containers=[hidden]),
        pod("plain", "windows", label, os={"name": "windows"}),
        pod("all", "of-namespace"),
        pod("all", "refused", {"vramshim.io/inject": "disabled"}),
        pod("all", "both", label),
        pod("node", "on-node", None, {"vramshim.io/strategy": "auto_growth"}),
        pod("node", "groups", securityContext={"supplementalGroups": [7], "runAsUser": 1000}),
    ]
    admitted = admit(pods, tenants.mutating(documents))
    for name in ("unlabelled", "no-gpu", "hidden", "windows", "refused"):
        before = next(one for one in pods if one["metadata"]["name"] == name)
        for container in admitted[name]["spec"]["containers"]:
            if not container["resources"]:  # Go writes the empty object.
                del container["resources"]
        that(admitted[name]["spec"] == before["spec"], f"the policy changes the pod {name}")
    for name in ("labelled", "named", "claimed", "own", "of-namespace", "both", "on-node", "groups"):
        spec = admitted[name]["spec"]
        names = [one["name"] for one in spec["volumes"]]
        that(names[:2] == ["vramshim", "vramshim-journals"] and len(set(names)) == len(names), f"{name}: volumes {names}")
        that([one["name"] for one in spec["initContainers"]].count("vramshim") == 1, f"{name}: init containers")
        given = [one["name"] for one in spec["containers"] if any(e["name"] == "LD_PRELOAD" for e in one.get("env", []))]
        that(given == (["side"] if name == "named" else ["main"]), f"{name}: {given} got the library")
        admitted[name].pop("status", None)
        validate({"apiVersion": "v1", "kind": "Pod", **admitted[name]})
    spec = admitted["own"]["spec"]
    names = [one["name"] for one in spec["containers"][0]["env"]]
    values = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    that(values["LD_PRELOAD"] == "/opt/vramshim/lib/libvramshim.so:/a.so", f"LD_PRELOAD is {values['LD_PRELOAD']}")
    that(values["VRAMSHIM_STRATEGY"] == "passthrough" and names.count("LD_PRELOAD") == 1, "the variables of the job's own")
    that(spec["volumes"][2]["name"] == "data" and spec["initContainers"][1]["name"] == "first", "the pod loses something")
    volumes = {name: admitted[name]["spec"]["volumes"][1] for name in ("labelled", "on-node")}
    that("emptyDir" in volumes["labelled"] and "persistentVolumeClaim" in volumes["on-node"], f"journals: {volumes}")
    groups = {name: admitted[name]["spec"].get("securityContext", {}) for name in ("labelled", "on-node", "groups")}
    that(groups == {"labelled": {}, "on-node": {}, "groups": {"supplementalGroups": [7], "runAsUser": 1000}}, f"{groups}")
    print(f"the API server's code treats {len(pods)} pods as it should")
    return admitted["on-node"]


def check_limits(documents):
    """Who gets the library, whose account and which limit: pods of parts of a GPU, init containers, variables of the job."""
    label = {"vramshim.io/inject": "enabled"}
    inherit = {"vramshim.io/limit": "inherit"}
    own = [{"name": "VRAMSHIM_MEMORY_LIMIT", "value": "80GiB"}, {"name": "VRAMSHIM_STRICT", "value": "0"}]
    main, side = ({"name": name, "image": "job", "resources": GPU, "env": own} for name in ("main", "side"))
    plain = [{"name": name, "image": "job"} for name in ("main", "side")]
    prepare, last = {"name": "prepare", "image": "job", "resources": GPU}, {"name": "last", "image": "job"}
    sidecar = {**prepare, "name": "sidecar", "restartPolicy": "Always"}
    every = {"vramshim.io/containers": "*"}

    def part(name, annotations):
        return pod("plain", name, label, annotations, plain, initContainers=[last])

    # The pod, the containers that get the library, and what their VRAMSHIM_POD_LIMIT is.
    cases = [
        (pod("plain", "wins", label, {"vramshim.io/limit": "8G"}, [main, side]), ["main", "side"], "8G"),
        (pod("plain", "typo", label, {"vramshim.io/limit": "8 parsecs"}, [main]), ["main"], "8 parsecs"),
        (pod("plain", "without", label, None, [main]), ["main"], None),
        (pod("plain", "layer", label, inherit, [main]), ["main"], "inherit"),
        (pod("plain", "init", label, inherit, plain, initContainers=[last, prepare, sidecar]), ["prepare", "sidecar"], "inherit"),
        (pod("plain", "every", label, every, plain, initContainers=[last]), ["main", "side"], None),
        (part("memory", {"gpu-memory": "3000"}), ["main"], None),
        (part("memory-inherited", {"gpu-memory": "3000", **inherit}), ["main"], "3000Mi"),
        (part("memory-limit", {"gpu-memory": "3000", "gpu-memory.limit": "6Gi", **inherit}), ["main"], "6Gi"),
        (part("memory-ours", {"gpu-memory": "3000", "vramshim.io/limit": "2Gi"}), ["main"], "2Gi"),
        (part("fraction", {"gpu-fraction": ".25", "gpu-fraction-container-name": "side", **inherit}), ["side"], "25%"),
        (part("fraction-init", {"gpu-fraction": "0.5", "gpu-fraction-container-name": "last", **inherit}), ["last"], "50%"),
        (part("fraction-typo", {"gpu-fraction": "5e-1", **inherit}), ["main"], "gpu-fraction=5e-1"),
    ]
    admitted = admit([one for one, _, _ in cases], tenants.mutating(documents))
    for before, names, limit in cases:
        name = before["metadata"]["name"]
        spec = admitted[name]["spec"]
        [accounts] = [one for one in spec["volumes"] if one["name"] == "vramshim-accounts"]
        that(accounts["emptyDir"]["medium"] == "Memory", f"{name}: {accounts}")
        given = {}
        for container in spec["containers"] + spec["initContainers"][1:]:
            env = environment({"env": container.get("env", [])}, admitted[name]["metadata"])
            if "LD_PRELOAD" in env:
                given[container["name"]] = env
                mounts = [one["mountPath"] for one in container["volumeMounts"]]
                that(mounts == ["/opt/vramshim", "/run/vramshim", "/var/log/vramshim"], f"{name}: {mounts}")
        that(list(given) == names, f"{name}: {list(given)} got the library")
        for container, env in given.items():
            that(env.get("VRAMSHIM_POD_LIMIT") == limit and env["VRAMSHIM_STRICT"] == "limits", f"{name}: {env}")
            account = f"/run/vramshim/{container if container in ('last', 'prepare') or limit == 'inherit' else 'pod'}"
            that(env["VRAMSHIM_ACCOUNTS"] == account, f"{name}: the account of {container} is {env['VRAMSHIM_ACCOUNTS']}")
        may_fail = "rm -rf" not in spec["initContainers"][0]["command"][2]
        that(may_fail == (limit is not None), f"{name}: a pod with a limit must not start without the library")
        admitted[name].pop("status", None)
        validate({"apiVersion": "v1", "kind": "Pod", **admitted[name]})
    print(f"{len(cases)} pods have the limit and the account that they should")
    return admitted["wins"]


def restricted(context, where):
    """What the Pod Security level `restricted` asks of a container."""
    that(context.get("allowPrivilegeEscalation") is False, f"{where}: allowPrivilegeEscalation")
    that(context.get("capabilities", {}).get("drop") == ["ALL"], f"{where}: capabilities")
    that(context.get("readOnlyRootFilesystem") is True, f"{where}: readOnlyRootFilesystem")
    that("privileged" not in context and not context["capabilities"].get("add"), f"{where}: rights")


def check_security(daemon_set, admitted):
    spec = daemon_set["spec"]["template"]["spec"]
    that(spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", "serve")
    for container in spec["containers"] + spec["initContainers"]:
        restricted(container["securityContext"], container["name"])
    that(not any(spec.get(name) for name in ("hostPID", "hostNetwork", "hostIPC")), "serve shares a namespace of the node")
    paths = [one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one]
    that(paths == ["/var/log/vramshim"], f"serve reads {paths}")
    init = admitted["spec"]["initContainers"][0]
    restricted(init["securityContext"], "the init container")
    that(init["securityContext"]["runAsNonRoot"] and init["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", "init")
    that(not any("hostPath" in one for one in admitted["spec"]["volumes"]), "the pod names a path of the node")


def environment(container, metadata):
    """What the kubelet makes of the variables of a container."""
    known = {}
    for one in container["env"]:
        if "valueFrom" in one:
            path = one["valueFrom"]["fieldRef"]["fieldPath"]
            annotation = re.fullmatch(r"metadata\.annotations\['(.*)'\]", path)
            field = path.removeprefix("metadata.")
            known[one["name"]] = metadata.get("annotations", {}).get(annotation[1], "") if annotation else metadata[field]
        else:
            known[one["name"]] = expanded(one["value"], known)
    return known


def expanded(text, known):
    return re.sub(r"\$\((\w+)\)", lambda found: known.get(found[1], found[0]), text)


# Asks for a number of MiB, prints the driver's answer, and holds the memory until its input ends.
JOB = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, address = ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
print(cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(int(sys.argv[1]) << 20)), flush=True)
sys.stdin.read()
"""


def in_root(folder, mounts, who, command, env):
    """A command in a container's place: this machine's root folder read-only, the mounts, another user, its own pids."""
    lines = [f"mount --bind / {folder}", f"mount -o remount,bind,ro {folder}", f"mount --rbind /dev {folder}/dev"]
    for below in ("opt", "var/log", "mnt", "tmp"):
        lines.append(f"mount -t tmpfs tmpfs {folder}/{below}")
    for source, target, mode in mounts:
        lines.append(f"mkdir -p {folder}{target} && mount --bind {source} {folder}{target}")
        if mode == "ro":
            lines.append(f"mount -o remount,bind,ro {folder}{target}")
    lines.append(f"mount -t proc proc {folder}/proc")
    given = [f"{name}={value}" for name, value in env.items()]
    inside = ["chroot", f"--userspec={who[0]}:{who[1]}", f"--groups={who[2]}", folder]
    inside += ["/usr/bin/env", "-i", "PATH=/usr/bin:/bin", *given, *command]
    script = "set -e\n" + "\n".join(lines) + "\nexec " + shlex.join(inside)
    return ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]


def ask(address, token):
    request = urllib.request.Request(f"http://{address}/metrics")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return opener.open(request, timeout=20).read().decode()


def run_for_real(daemon_set, admitted, work):
    serve_spec = daemon_set["spec"]["template"]["spec"]
    node, image, files, roots = (f"{work}/{name}" for name in ("node", "image", "files", "roots"))
    for folder in (node, files, roots):
        os.mkdir(folder)
    os.chmod(work, 0o755)
    os.chmod(files, 0o777)  # An emptyDir.
    # The init container of `serve`: root without capabilities, in the group.
    [init] = serve_spec["initContainers"]
    context = init["securityContext"]
    command = [part.replace("/journals", node) for part in init["command"]]
    no_rights = ["setpriv", "--regid", str(context["runAsGroup"]), "--clear-groups", "--bounding-set=-all", "--inh-caps=-all"]
    made = subprocess.run([*no_rights, "--no-new-privs", *command], capture_output=True, text=True)
    that(made.returncode == 0, f"the init container of serve: {made.stderr}")
    about = os.stat(node)
    that((stat.S_IMODE(about.st_mode), about.st_gid) == (0o3777, GROUP), f"the folder has mode {about.st_mode:o}")
    # The layout of the image, as scripts/package makes it.
    for below in ("bin", "lib", "python"):
        os.makedirs(f"{image}/{below}")
    shutil.copy(f"{ARTIFACTS}/vramshim", f"{image}/bin")
    shutil.copy(f"{ARTIFACTS}/libvramshim.so", f"{image}/lib")
    # The init container of the job.
    [copy] = admitted["spec"]["initContainers"]
    user = copy["securityContext"]["runAsUser"]
    command = [part.replace("/files", "/mnt/files") for part in copy["command"]]
    mounts = [(image, "/opt/vramshim", "ro"), (files, "/mnt/files", "rw")]
    done = subprocess.run(in_root(new(roots), mounts, (user, user, user), command, {}), capture_output=True, text=True)
    that(done.returncode == 0 and not done.stderr, f"the init container: {done.stderr}")
    that(os.path.exists(f"{files}/lib/libvramshim.so"), "the init container copied no library")
    # The job, of another user, with the variables and mounts of the admitted pod.
    [container] = [one for one in admitted["spec"]["containers"] if "env" in one]
    env = environment(container, admitted["metadata"])
    [mount] = [one for one in container["volumeMounts"] if one["name"] == "vramshim-journals"]
    below = f"{node}/{expanded(mount['subPathExpr'], env)}"
    # The kubelet makes the folder of a subPath with the mode of the volume (SafeMakeDir of its package subpath).
    os.mkdir(below)
    os.chmod(below, stat.S_IMODE(about.st_mode))
    that(os.stat(below).st_gid == GROUP, "the folder of the pod has another group")
    os.mkdir(f"{work}/jobs")
    with open(f"{work}/jobs/job.py", "w") as file:
        file.write(JOB)
    shutil.copytree(SIMGPU, f"{work}/simgpu", symlinks=True)
    mounts = [
        (files, "/opt/vramshim", "ro"), (below, mount["mountPath"], "rw"), (f"{work}/jobs", "/mnt/jobs", "ro"),
        (f"{work}/simgpu", "/mnt/simgpu", "ro"),
    ]
    command = ["/usr/bin/python3", "/mnt/jobs/job.py", "64"]
    simulated = {**env, "LD_LIBRARY_PATH": "/mnt/simgpu"}
    who = (1234, 1234, 1234)
    job = subprocess.Popen(in_root(new(roots), mounts, who, command, simulated), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.PIPE, text=True)
    started = [job]
    try:
        said = job.stdout.readline()
        if said != "0\n":
            end(job)
            fail(f"the job said {said!r}: {job.stderr.read()}")
        [journal] = [one for one in os.listdir(below) if one.endswith(".vraj")]
        about = os.stat(f"{below}/{journal}")
        that((stat.S_IMODE(about.st_mode), about.st_uid, about.st_gid) == (0o640, 1234, GROUP), f"the journal: {about}")
        tenants.check_folders(that, in_root, lambda: new(roots), node, below)
        # `serve`, of its own user.
        [serve] = serve_spec["containers"]
        os.mkdir(f"{work}/token")
        token = "0123456789abcdef0123456789abcdef"
        with open(f"{work}/token/token", "w") as file:
            file.write(token)
        # As the kubelet gives a secret to a pod with fsGroup.
        os.chown(f"{work}/token/token", 0, GROUP)
        os.chmod(f"{work}/token/token", 0o440)
        command = [*serve["command"], *serve["args"]]
        command = ["127.0.0.1:0" if part == "0.0.0.0:9087" else part for part in command]
        command = ["/mnt" + part if part in ("/journals", "/token/token") else part for part in command]
        mounts = [(image, "/opt/vramshim", "ro"), (node, "/mnt/journals", "ro"), (f"{work}/token", "/mnt/token", "ro")]
        context = serve_spec["securityContext"]
        who = (context["runAsUser"], context["runAsGroup"], context["fsGroup"])
        served = subprocess.Popen(in_root(new(roots), mounts, who, command, {}), stderr=subprocess.PIPE, text=True)
        started.append(served)
        said = served.stderr.readline()
        found = re.search(r"http://([^/]*)/metrics", said)
        that(found, f"serve said {said!r}")
        try:
            ask(found[1], None)
        except urllib.error.HTTPError as error:
            that(error.code == 401, f"without the token: {error.code}")
        else:
            fail("serve answers without the token")
        for _ in range(600):
            text = ask(found[1], token)
            held = re.search(r"^vramshim_allocated_bytes\{.*strategy=\"auto_growth\".*\} 67108864$", text, re.M)
            running = re.search(r"^vramshim_process_running\{.*job_name=\"job\".*\} 1$", text, re.M)
            if held and running:
                break
            time.sleep(0.2)
        else:
            fail(f"serve does not have the job:\n{text}")
    finally:
        for process in started:
            end(process)
    print("the scripts of the manifests ran: another user's job has its journal where serve reads it, and a scrape has it")


def check_group(admitted, work):
    """Two containers of a pod on a device of 24 GiB, whose pod may have 8 x 10^9 bytes, and one whose limit cannot be read."""
    containers = {one["name"]: environment(one, admitted["metadata"]) for one in admitted["spec"]["containers"]}
    for name, below in (("opt/lib", ARTIFACTS), ("simgpu", SIMGPU)):
        shutil.copytree(below, f"{work}/{name}", symlinks=True, ignore=lambda folder, names: [
            one for one in names if folder == ARTIFACTS and one != "libvramshim.so"])
    os.mkdir(f"{work}/accounts", 0o777)

    def request(container, mib, **more):
        given = {**containers[container], "LD_LIBRARY_PATH": f"{work}/simgpu", "SIMGPU_MEMORY": "24GiB", **more}
        given.update(VRAMSHIM_DIR=f"{work}/journals", LD_PRELOAD=f"{work}/opt/lib/libvramshim.so", SIMGPU_STATE=f"{work}/state")
        given["VRAMSHIM_ACCOUNTS"] = given["VRAMSHIM_ACCOUNTS"].replace("/run/vramshim", f"{work}/accounts")
        job = subprocess.Popen([sys.executable, "-c", JOB, str(mib)], env=given, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return job, int(job.stdout.readline())

    def ended(job):
        return job.communicate()[1]

    # 8 GiB are more than 8 x 10^9 bytes, although the container's own variable allows 80 GiB.
    jobs = []
    for container, mib, code in (("main", 8192, 2), ("main", 5000, 0), ("side", 3000, 2), ("main", 3000, 2), ("side", 2000, 0)):
        job, result = request(container, mib)
        jobs.append(job)
        that(result == code, f"{container} asked for {mib} MiB: {result}, {code} expected")
    for job in jobs:
        ended(job)
    job, result = request("main", 100, VRAMSHIM_POD_LIMIT="0.5", VRAMSHIM_LOG="verbose")
    said = ended(job)
    that(result == 800 and 'VRAMSHIM_POD_LIMIT="0.5"' in said and "8192Mi" in said, f"{result}: {said}")
    job, result = request("main", 100, VRAMSHIM_LOG="verbose")
    that(result == 0 and "VRAMSHIM_LOG" in ended(job), f"a typo in a log level: {result}")
    print("the containers of a pod share its limit, and one with a limit that cannot be read gets no memory")


def end(process):
    """Ends the command, which is the first process of its namespace, and with it all of the namespace."""
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        children = file.read().split()
    for child in children:
        os.kill(int(child), signal.SIGKILL)
    process.wait()


def check_slurm(work):
    """The task prolog with the variables that Slurm sets, and a task with what it printed."""
    library = f"{ARTIFACTS}/libvramshim.so"
    slurm = {"PATH": "/usr/bin:/bin", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": work, "VRAMSHIM_LIBRARY": library}

    def prolog(**more):
        run = subprocess.run([f"{ROOT}/scripts/slurm/task-prolog"], env={**slurm, **more}, capture_output=True, text=True)
        that(run.returncode == 0 and not run.stderr, f"the task prolog: {run.stderr}")
        return dict(line.removeprefix("export ").split("=", 1) for line in run.stdout.splitlines())

    that(prolog() == {}, "a task without GPUs gets the library")
    that(prolog(SLURM_JOB_GPUS="0", VRAMSHIM="0") == {}, "a job cannot go without the library")
    that(prolog(SLURM_JOB_GPUS="0", VRAMSHIM_LIBRARY="/nowhere") == {}, "a library that is missing is preloaded")
    that(prolog(SLURM_JOB_GPUS="0", LD_PRELOAD=library)["LD_PRELOAD"] == f"{library}:{library}", "LD_PRELOAD")
    task = prolog(SLURM_JOB_GPUS="0")
    with open(f"{work}/slurm.py", "w") as file:
        file.write(JOB)
    ran = subprocess.run(["/usr/bin/python3", f"{work}/slurm.py", "64"], env={**slurm, **task, "LD_LIBRARY_PATH": SIMGPU},
                         stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=work)
    that(ran.stdout == "0\n", f"the task: {ran.stderr}")
    that(any(name.endswith(".vraj") for name in os.listdir(f"{work}/vramshim-7")), "the task has no journal")
    print("the task prolog of Slurm puts the library into tasks with GPUs")


def new(roots):
    return tempfile.mkdtemp(dir=roots)


def main():
    documents = check_manifests()
    admitted = check_policy(documents)
    limited = check_limits(documents)
    tenants.check_mounts(that, admit, pod, documents["policy"], admitted)
    [daemon_set] = [one for one in documents["serve"] if one["kind"] == "DaemonSet"]
    check_security(daemon_set, admitted)
    with tempfile.TemporaryDirectory() as work:
        check_slurm(work)
    with tempfile.TemporaryDirectory() as work:
        check_group(limited, work)
    left_out = []
    if os.geteuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"]).returncode != 0:
        left_out.append("the scripts of the manifests (root must be able to mount)")
    else:
        with tempfile.TemporaryDirectory() as work:
            run_for_real(daemon_set, admitted, work)
    print("passed; " + ("left out: " + "; ".join(left_out) if left_out else "nothing was left out"))


main()
