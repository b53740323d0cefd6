"""What operators see and steer: metrics, logs, the operator port."""
