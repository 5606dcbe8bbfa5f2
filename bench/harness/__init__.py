"""What every scenario needs: servers to compare, rounds that alternate, ratios, prompts, reports and plots."""
