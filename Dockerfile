# One image for a machine, and for the hosts of a cluster (docs/guides/hosts.md). Not built by this project's own checks.
FROM python:3.11-slim-bookworm

# A compiler for Horovod; ssh, by which hosts are reached. Host keys are made when sshd first starts, never in an image.
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ make openssh-client openssh-server \
    && rm -rf /var/lib/apt/lists/* /etc/ssh/ssh_host_* \
    && mkdir -p /run/sshd \
    && printf 'PermitRootLogin prohibit-password\nPasswordAuthentication no\nStrictModes no\n' \
        > /etc/ssh/sshd_config.d/hfdt.conf \
    && printf 'Host *\n    StrictHostKeyChecking accept-new\n' > /etc/ssh/ssh_config.d/hfdt.conf

WORKDIR /opt/hfdt
COPY pyproject.toml setup.py README.md LICENSE ./
COPY fdt fdt
COPY client_shim client_shim
COPY replica replica
COPY frontends frontends
COPY hfdt hfdt
COPY nfdt nfdt
RUN pip install --no-cache-dir '.[mpi]' && hfdt doctor --install-horovod

WORKDIR /work
# A host that waits for runs; `docker run hfdt hfdt run train.py` replaces it.
CMD ["sh", "-c", "ssh-keygen -A && exec /usr/sbin/sshd -D -e"]
