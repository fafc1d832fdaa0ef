"""lllaunch."""
