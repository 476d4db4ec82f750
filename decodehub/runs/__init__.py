"""What the jobs do: training, sweeps and studies."""
