"""The files under scripts/kubernetes, as far as they can be checked without a cluster and without docker.

  kubernetes_files.py DDPRUN SOURCE_DIR

Manifests: every field is one that Kubernetes knows, what has to be the same is the same, and every pod's command with
the variables that the pod will have comes to the plan that is meant (ddprun --dry-run). Dockerfile: it has three lines, and
the programs need nothing but the C library. Needs PyYAML (Debian's python3-yaml); exit code 77 where it is missing.
"""
import atexit
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import yaml
except ImportError:
    print('no PyYAML here: scripts/setup installs python3-yaml')
    sys.exit(77)

ddprun, source = sys.argv[1], Path(sys.argv[2])
folder = source / 'scripts' / 'kubernetes'
failures = []


def check(holds, what):
    if not holds:
        failures.append(what)
        print('FAILED:', what)


# ---- fields: a dict lists an object's, a list holds what each element is, a type is a value; ANY is free of form

ANY = object()
META = {'name': str, 'labels': ANY, 'annotations': ANY}
SERVICE = {'apiVersion': str, 'kind': str, 'metadata': META,
           'spec': {'clusterIP': str, 'publishNotReadyAddresses': bool, 'selector': ANY}}
PROBE = {'httpGet': {'path': str, 'port': str}, 'periodSeconds': int, 'timeoutSeconds': int, 'failureThreshold': int}
CONTAINER = {
    'name': str, 'image': str, 'command': [str], 'args': [str],
    'env': [{'name': str, 'value': str, 'valueFrom': {'fieldRef': {'fieldPath': str}}}],
    'ports': [{'name': str, 'containerPort': int}],
    'readinessProbe': PROBE, 'livenessProbe': PROBE,
    'resources': {'limits': ANY, 'requests': ANY},
    'terminationMessagePath': str, 'terminationMessagePolicy': str,
    'volumeMounts': [{'name': str, 'mountPath': str, 'readOnly': bool}]}
POD = {'metadata': META,
       'spec': {'subdomain': str, 'restartPolicy': str, 'terminationGracePeriodSeconds': int,
                'containers': [CONTAINER],
                'volumes': [{'name': str, 'persistentVolumeClaim': {'claimName': str},
                             'emptyDir': {'medium': str, 'sizeLimit': str}, 'secret': {'secretName': str}}]}}
POLICY = {'rules': [{'action': str,
                     'onExitCodes': {'containerName': str, 'operator': str, 'values': [int]},
                     'onPodConditions': [{'type': str, 'status': str}]}]}
JOB_SPEC = {'completionMode': str, 'completions': int, 'parallelism': int, 'backoffLimit': int,
            'podFailurePolicy': POLICY, 'template': POD}
JOB = {'apiVersion': str, 'kind': str, 'metadata': META, 'spec': JOB_SPEC}
JOB_SET = {
    'apiVersion': str, 'kind': str, 'metadata': META,
    'spec': {'network': {'enableDNSHostnames': bool, 'publishNotReadyAddresses': bool, 'subdomain': str},
             'failurePolicy': {'maxRestarts': int,
                               'rules': [{'name': str, 'action': str, 'onJobFailureReasons': [str]}]},
             'replicatedJobs': [{'name': str, 'replicas': int, 'template': {'metadata': META, 'spec': JOB_SPEC}}]}}
POD_MONITOR = {'apiVersion': str, 'kind': str, 'metadata': META,
               'spec': {'selector': {'matchExpressions': [{'key': str, 'operator': str, 'values': [str]}]},
                        'podMetricsEndpoints': [{'port': str, 'path': str, 'interval': str}]}}
TRAIN_JOB = {'apiVersion': str, 'kind': str, 'metadata': META,
             'spec': {'runtimeRef': {'name': str, 'kind': str, 'apiGroup': str},
                      'trainer': {'image': str, 'command': [str], 'args': [str], 'numNodes': int,
                                  'env': [{'name': str, 'value': str}], 'resourcesPerNode': {'limits': ANY}}}}
KINDS = {('trainer.kubeflow.org/v1alpha1', 'TrainJob'): TRAIN_JOB, ('monitoring.coreos.com/v1', 'PodMonitor'): POD_MONITOR, ('v1', 'Service'): SERVICE, ('batch/v1', 'Job'): JOB, ('jobset.x-k8s.io/v1alpha2', 'JobSet'): JOB_SET}


def check_fields(value, schema, where):
    if schema is ANY:
        return
    if isinstance(schema, dict):
        check(isinstance(value, dict), f'{where} is an object')
        for key in value if isinstance(value, dict) else ():
            check(key in schema, f'{where}.{key} is a field that exists')
            if key in schema:
                check_fields(value[key], schema[key], f'{where}.{key}')
    elif isinstance(schema, list):
        check(isinstance(value, list), f'{where} is a list')
        for i, element in enumerate(value if isinstance(value, list) else ()):
            check_fields(element, schema[0], f'{where}[{i}]')
    else:
        check(type(value) is schema, f'{where} is a {schema.__name__}, not {value!r}')


class Loader(yaml.SafeLoader):
    """YAML lets the last of two equal keys win; a manifest must not have two."""

    def construct_mapping(self, node, deep=False):
        keys = [self.construct_object(key, deep=deep) for key, _ in node.value]
        check(len(keys) == len(set(keys)), f'no key twice at {node.start_mark}')
        return super().construct_mapping(node, deep=deep)


# ---- what the pods of a Job come to

known_variables = set(re.findall(r'(?:PET|DDPRUN)_[A-Z_]+',
                                 subprocess.check_output([ddprun, '--print-option-table'], text=True)))


def variables_of(container, labels):
    variables = {}
    for entry in container['env']:
        name = entry['name']
        if name.startswith(('PET_', 'DDPRUN_')):
            check(name in known_variables, f'{name} is a variable of ddprun')
        if 'value' in entry:
            variables[name] = entry['value']
            continue
        path = entry['valueFrom']['fieldRef']['fieldPath']
        found = re.fullmatch(r"metadata\.labels\['(.+)'\]", path)
        check(found and found[1] in labels, f'{path} is there')
        variables[name] = labels[found[1]] if found and found[1] in labels else ''
    return variables


token = Path(tempfile.mkdtemp()) / 'token'
atexit.register(shutil.rmtree, token.parent)
token.touch(0o600)
token.write_text('secret\n')


def plan_of(container, variables):
    environment = {'PATH': os.environ['PATH'], 'HOME': '/', 'OMP_NUM_THREADS': '1', **variables}
    # Here is nothing mounted.
    for at in [mount['mountPath'] for mount in container.get('volumeMounts', ()) if mount['name'] == 'token']:
        check(environment['DDPRUN_TOKEN_FILE'] == f'{at}/token', 'the token is where its secret is mounted')
        environment['DDPRUN_TOKEN_FILE'] = str(token)
    # Here may be no GPU, and is no program of the image.
    if environment.get('PET_NPROC_PER_NODE') == 'gpu' and not list(Path('/dev').glob('nvidia[0-9]*')):
        environment['PET_NPROC_PER_NODE'] = 'usable-cpus'
    words = container['command'] + container['args']
    check(words[0] == 'ddprun', 'the command is ddprun')
    words = [ddprun, '--dry-run', '--json'] + [w.replace('/app/train', '/bin/true') for w in words[1:]]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    check(done.returncode == 0, f'{words} with {variables} is accepted: {done.stderr}')
    return json.loads(done.stdout) if done.returncode == 0 else None


def check_job(name, spec, labels, subdomain):
    nodes = spec['completions']
    pod = spec['template']['spec']
    (container,) = pod['containers']
    check(spec['completionMode'] == 'Indexed' and spec['parallelism'] == nodes, f'{name}: {nodes} pods at once')
    check(pod['restartPolicy'] == 'Never', f'{name}: podFailurePolicy asks for restartPolicy Never')
    volumes = {volume['name'] for volume in pod['volumes']}
    mounts = {mount['name'] for mount in container['volumeMounts']}
    check(volumes == mounts, f'{name}: {volumes} are mounted as {mounts}')
    ports = {port['name']: port['containerPort'] for port in container['ports']}
    for probe, path in (('readinessProbe', '/healthz'), ('livenessProbe', '/livez')):
        check(container[probe]['httpGet'] == {'path': path, 'port': 'metrics'}, f'{name}: {probe} asks {path}')
    check('DisruptionTarget' in str(spec['podFailurePolicy']), f'{name}: a pod that is moved away costs nothing')
    check(spec['backoffLimit'] > 0, f'{name}: one pod that fails does not make all pods anew')
    codes = set(re.findall(r'kExit\w+ = (\d+);', (source / 'rendezvous/common/exit_codes.h').read_text()))
    for rule in spec['podFailurePolicy']['rules']:
        on_exit = rule.get('onExitCodes')
        if on_exit:
            check(on_exit['containerName'] == container['name'], f'{name}: the policy is about the container')
            check({str(value) for value in on_exit['values']} <= codes, f'{name}: {on_exit} are codes of ddprun')
    for index in range(nodes):
        variables = variables_of(container, labels)
        variables.update(JOB_COMPLETION_INDEX=str(index), HOSTNAME=f'{name}-{index}', KUBERNETES_SERVICE_HOST='10.0.0.1')
        plan = plan_of(container, variables)
        if plan is None:
            continue
        seen = plan['job']['nodes']
        check(plan['site'] == 'Kubernetes', f'{name}-{index}: the site is Kubernetes')
        check(plan['warnings'] == [], f'{name}-{index}: no warnings: {plan["warnings"]}')
        check(seen['proof'] == 'token', f'{name}-{index}: the token is read')
        check((seen['node_rank'], seen['min_nodes'], seen['max_nodes']) == (index, nodes, nodes),
              f'{name}-{index}: node {index} of {nodes}: {seen}')
        check(seen['endpoint'] == f'{name}-0.{subdomain}:{container["ports"][0]["containerPort"]}',
              f'{name}-{index}: meets at pod 0: {seen["endpoint"]}')
        check(seen['leader'] == ('here' if index == 0 else 'elsewhere'), f'{name}-{index}: pod 0 leads')
        grace = pod['terminationGracePeriodSeconds'] * 1000
        check(plan['job']['metrics'] == f'0.0.0.0:{ports["metrics"]}', f'{name}: kubelet reaches the probes\' port')
        check(plan['job']['shutdown_timeout_ms'] + 10_000 <= grace, f'{name}: a stop fits into {grace} ms')
    return plan


jobs = set()
for path in sorted(folder.glob('*.yaml')):
    documents = list(yaml.load_all(path.read_text(), Loader))
    for document in documents:
        schema = KINDS.get((document.get('apiVersion'), document.get('kind')))
        check(schema is not None, f'{path.name}: a kind that exists')
        check_fields(document, schema or ANY, f'{path.name}: {document.get("kind")}')
    by_kind = {document['kind']: document for document in documents}
    if 'Job' in by_kind:
        job, service = by_kind['Job'], by_kind['Service']
        name = job['metadata']['name']
        check(service['spec']['clusterIP'] == 'None' and service['spec']['publishNotReadyAddresses'],
              'the service is headless and tells of pods at once')
        check(service['spec']['selector'] == {'batch.kubernetes.io/job-name': name}, 'the service is for the pods')
        check(service['metadata']['name'] == job['spec']['template']['spec']['subdomain'] == name,
              'service, subdomain and job have one name')
        check_job(name, job['spec'], {}, subdomain=name)
        jobs.add(name)
    if 'JobSet' in by_kind:
        spec, name = by_kind['JobSet']['spec'], by_kind['JobSet']['metadata']['name']
        (replicated,) = spec['replicatedJobs']
        check(spec['network']['enableDNSHostnames'] and 'subdomain' not in spec['network'], 'pods have names')
        labels = {'jobset.sigs.k8s.io/jobset-name': name, 'jobset.sigs.k8s.io/restart-attempt': '2'}
        jobs.add(f'{name}-{replicated["name"]}-0')
        plan = check_job(f'{name}-{replicated["name"]}-0', replicated['template']['spec'], labels, subdomain=name)
        check(plan and plan['job']['run_id'] == f'{name}-2', 'the run id is that of the attempt')
    if 'TrainJob' in by_kind:
        # What Trainer's policy torch sets, for runtimes such as torch-distributed.
        name, trainer = by_kind['TrainJob']['metadata']['name'], by_kind['TrainJob']['spec']['trainer']
        for index in range(trainer['numNodes']):
            variables = variables_of(trainer, {})
            check(not [each for each in variables if each.startswith('PET_')], 'Trainer alone sets PET_*')
            variables.update(PET_NNODES=str(trainer['numNodes']), PET_NPROC_PER_NODE='1', PET_NODE_RANK=str(index),
                             PET_MASTER_ADDR=f'{name}-node-0-0.{name}', PET_MASTER_PORT='29400',
                             JOB_COMPLETION_INDEX=str(index), HOSTNAME=f'{name}-node-0-{index}', KUBERNETES_SERVICE_HOST='10.0.0.1')
            plan = plan_of(trainer, variables)
            if plan:
                seen = plan['job']['nodes']
                check(plan['warnings'] == [], f'{name}-{index}: no warnings: {plan["warnings"]}')
                check((seen['node_rank'], seen['min_nodes'], seen['max_nodes']) == (index, 2, 2), f'node {index} of 2: {seen}')
                check(seen['endpoint'] == f'{name}-node-0-0.{name}:29400', f'meets at node 0: {seen["endpoint"]}')
                check(plan['job']['restarts']['max_restarts'] == 3, 'restarts within the pods')
    print(path.name, 'was checked')

monitor = yaml.safe_load((folder / 'podmonitor.yaml').read_text())['spec']
(selected,) = monitor['selector']['matchExpressions']
check(set(selected['values']) == jobs, f'{selected} selects the pods of {jobs}')
check(monitor['podMetricsEndpoints'][0]['port'] == 'metrics', 'the monitor scrapes the port of the metrics')

# ---- the Dockerfile

# What its second line does is tested in tests/packages.
lines = [line.split(' ', 1)[0] for line in (folder / 'Dockerfile').read_text().splitlines() if not line.startswith('#')]
check(lines == ['FROM', 'RUN', 'ENTRYPOINT'], f'the image is the base with the wheel: {lines}')

# Nothing is installed beside the programs.
libraries = subprocess.check_output(['ldd', ddprun], text=True)
for library in re.findall(r'^\s*(\S+)', libraries, re.M):
    check(re.match(r'(linux-vdso|libm|libc|libdl|libpthread|/lib64/ld-linux.*|ld-linux.*)\.so', library),
          f'{library} is in any image')
print('Dockerfile was checked')
sys.exit(1 if failures else 0)
