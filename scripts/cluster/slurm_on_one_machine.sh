#!/usr/bin/env bash
# A whole SLURM on this machine alone, for trying sweeps: apt-get install slurm-wlm munge, then run this as root.
# Usage: slurm_on_one_machine.sh start|stop
set -euo pipefail
state=/var/lib/slurm-one-machine
case ${1:-start} in
  stop)
    for name in slurmctld slurmd munged; do [ -f $state/$name.pid ] && kill "$(cat $state/$name.pid)" || true; done
    exit ;;
esac
mkdir -p $state/spool $state/ctld /run/munge /var/log/munge /var/lib/munge
chown -R munge: /run/munge /var/log/munge /var/lib/munge /etc/munge
[ -s /etc/munge/munge.key ] || { dd if=/dev/urandom of=/etc/munge/munge.key bs=1024 count=1 status=none; chown munge: /etc/munge/munge.key; chmod 400 /etc/munge/munge.key; }
chmod 755 /run/munge; chown munge: $state; touch $state/munged.pid; chown munge: $state/munged.pid
runuser -u munge -- munged --pid-file=$state/munged.pid --force 2>/dev/null
cat > /etc/slurm/slurm.conf <<CONF
ClusterName=one
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=5
ReturnToService=2
JobRequeue=1
KillWait=30
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd.pid
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool
SlurmctldLogFile=$state/slurmctld.log
SlurmdLogFile=$state/slurmd.log
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=$(hostname -s) Default=YES MaxTime=INFINITE State=UP
CONF
slurmctld
slurmd
sleep 3
sinfo
