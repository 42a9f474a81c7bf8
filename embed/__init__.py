"""The thin device stage: row store, arena, pooling, update, checkpoint."""
